"""The programs and schemas that tests of deploy/ use: what tools/install_deploy_tools has fetched.

A test that needs one which is not there is skipped, and says so.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

# Runfiles are links into the clone that is tested.
ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
FOLDER = os.path.join(ROOT, ".cache/deploy_tools")


def path_of(name):
    """The path of one of them. Skips the test where it is missing."""
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        raise unittest.SkipTest("no %s: run tools/install_deploy_tools" % name)
    return path


def run(name, *arguments, **options):
    """Its standard output. Fails with all it said if its status is not 0."""
    done = subprocess.run([path_of(name), *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False, **options)
    if done.returncode != 0:
        raise AssertionError("%s %s: status %d\n%s%s" % (
            name, " ".join(arguments), done.returncode, done.stdout, done.stderr))
    return done.stdout


def kustomize(folder):
    """The objects of a kustomization of this clone, by kubectl."""
    return load_all(run("kubectl", "kustomize", os.path.join(ROOT, folder)))


def kustomize_of(kustomization):
    """The same of one that is not in the clone; its paths are, from the clone's root."""
    with tempfile.TemporaryDirectory() as folder:
        # kubectl takes no absolute path.
        place = os.path.realpath(folder)
        for paths in (kustomization["resources"], kustomization["components"]):
            paths[:] = [os.path.relpath(os.path.join(ROOT, path), place) for path in paths]
        with open(os.path.join(place, "kustomization.yaml"), "w") as file:
            yaml.safe_dump(kustomization, file)
        return load_all(run("kubectl", "kustomize", place))


def helm():
    """The module that renders charts with Helm's own library."""
    path_of("helm_python")
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    import helm_python
    return helm_python


def load_all(text):
    """The objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


class Schemas:
    """JSON schemas of Kubernetes' own kinds, in which an unknown field is a fault."""

    def __init__(self):
        self._folder = path_of("schemas")
        with open(os.path.join(self._folder, "_definitions.json")) as file:
            definitions = json.load(file)
        self._resolver = jsonschema.RefResolver(
            definitions["$id"], definitions, store={definitions["$id"]: definitions})

    def faults(self, document):
        """What the API server would refuse, as text."""
        group, _, version = document["apiVersion"].rpartition("/")
        name = "-".join(filter(None, [document["kind"].lower(), group.split(".")[0], version]))
        with open(os.path.join(self._folder, name + ".json")) as file:
            schema = json.load(file)
        validator = jsonschema.Draft202012Validator(schema, resolver=self._resolver)
        return ["%s: %s" % ("/".join(map(str, error.absolute_path)), error.message[:300])
                for error in validator.iter_errors(document)]
