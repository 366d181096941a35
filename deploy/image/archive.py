"""Packs a root file system as an OCI image in one file.

    archive.py FOLDER FILE

The same folder gives the same bytes: owners, times and order are fixed.
"""
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

NAME = "kvtierd:0.1.0"
CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {
        "User": "65532:65532",
        "Entrypoint": ["/usr/bin/kvtierd"],
        "Labels": {
            "org.opencontainers.image.title": "kvtierd",
            "org.opencontainers.image.description": "KV tiering daemon of a node",
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    },
}
_TYPE = "application/vnd.oci.image."


def _owned_by_root(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def layer_of(folder):
    """The folder as an uncompressed layer."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(os.listdir(folder)):  # each one's content is sorted by tarfile
            tar.add(os.path.join(folder, name), name, filter=_owned_by_root)
    return data.getvalue()


def blobs_of(layer):
    """(index, {digest: bytes}) of an image of one layer."""
    blobs = {}

    def add(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": _TYPE + kind, "digest": "sha256:" + digest, "size": len(data)}

    packed = add(gzip.compress(layer, 6, mtime=0), "layer.v1.tar+gzip")
    config = {**CONFIG, "rootfs": {
        "type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
    manifest = {"schemaVersion": 2, "mediaType": _TYPE + "manifest.v1+json",
                "config": add(_bytes(config), "config.v1+json"), "layers": [packed]}
    entry = add(_bytes(manifest), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": NAME.partition(":")[2]}
    return {"schemaVersion": 2, "manifests": [entry]}, blobs


def _bytes(value):
    return json.dumps(value, sort_keys=True).encode()


def write(folder, path):
    index, blobs = blobs_of(layer_of(folder))
    files = {"oci-layout": _bytes({"imageLayoutVersion": "1.0.0"}), "index.json": _bytes(index)}
    files.update({"blobs/sha256/" + digest: data for digest, data in sorted(blobs.items())})
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    write(*sys.argv[1:])
