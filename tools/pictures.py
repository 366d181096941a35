"""Pictures of what people look at, of a daemon at work on this machine: the live view of kvtierctl,
and the dashboard as Prometheus sees it.

    pictures.py DAEMON KVTIERCTL PROMETHEUS FOLDER

Started by tools/pictures.
"""
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.append("tests/integration")
import daemon as harness  # noqa: E402
import scene  # noqa: E402

from deploy.monitoring import live_test, preview  # noqa: E402

SECONDS = 40  # of work before the pictures are taken


class Pictures(unittest.TestCase):
    """Not a test: what is started is ended by its clean-ups."""

    def runTest(self):
        binary, kvtierctl, prometheus, folder = sys.argv[1:5]
        port = live_test.free_port()
        daemon = harness.Daemon(self, ["--metrics_address=127.0.0.1:%d" % port], binary=binary)
        address = self.watch(prometheus, port)
        stop = threading.Event()
        threads = [threading.Thread(target=self.work, args=(daemon, number, stop))
                   for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(SECONDS)
            self.picture_of([kvtierctl, "--socket=" + daemon.socket, "top", "--iterations=4"],
                            folder, "top")
            preview.draw(address, SECONDS, folder + "/dashboard.png")
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def watch(self, prometheus, port):
        """A Prometheus that scrapes the daemon: its address."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(folder.name + "/prometheus.yml", "w") as file:
            file.write("global: {scrape_interval: 500ms}\nscrape_configs: [{job_name: kvtierd, "
                       "static_configs: [{targets: ['127.0.0.1:%d']}]}]\n" % port)
        address = "127.0.0.1:%d" % live_test.free_port()
        process = subprocess.Popen(
            [prometheus, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             "--web.listen-address=" + address],
            cwd=folder.name, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return address

    def work(self, daemon, number, stop):
        """A worker whose requests look at more and more rows."""
        worker = scene.Worker(self, daemon, "vLLM rank %d" % number, client=daemon.connect(self))
        worker.admit("r%d" % number)
        for spread in range(1, 1000):
            scene.decode(worker, 20, 1 + spread % 5, "r%d" % number, pause=0.02)
            if stop.is_set():
                return

    @staticmethod
    def picture_of(command, folder, name):
        paths = [os.path.join(folder, name + ending) for ending in (".svg", ".png")]
        subprocess.run([sys.executable, "tools/terminal_picture.py", *paths, "--", *command],
                       check=True)


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=0).run(Pictures())
    sys.exit(not result.wasSuccessful())
