"""The tables and plots of benchmarks, on results that are made up."""
import contextlib
import io
import json
import os
import tempfile
import unittest

from tools import bench_report

try:
    import matplotlib
except ImportError:
    matplotlib = None


def swap_in_result(miss, batch, us, **more):
    rows = miss * batch * 20.48
    return dict({"miss_percent": miss, "batch": batch, "us_median": us, "us_p99": us * 1.1,
                 "rows_per_step": rows, "gb_per_s": rows * 656 / us / 1e3,
                 "us_floor": 5 + rows * 656 / 43e3 if rows else 0, "us_design_a": us * 2,
                 "wrong": 0, "commit": "abc"}, **more)


SWAP_IN = [swap_in_result(m, b, 10.0 + b) for m in (0, 10) for b in (1, 8)]
MACHINE = {"gpu": "Some GPU", "driver": "580", "cpu": "Some CPU", "cpu_threads": 16,
           "kernel": "Linux 6", "commit": "abc",
           "ceilings": {"copy_engine_to_device_gb_per_s": 55.51, "gather_rows": 65536,
                        "copy_engine_to_host_gb_per_s": 55.4, "gather_gb_per_s": 43.26,
                        "empty_kernel_us": 0.68, "empty_kernel_with_event_us": 1.5,
                        "pool_kind": "memfd", "pool_bytes": 5 << 29}}
BACKUP = [{"backup": kind, "rows": rows, "layers": 61, "us_floor": 3.0, "us_median": 4.0,
           "us_p99": 5.0, "gb_per_s": 30.0, "wrong": 0}
          for kind, rows in (("decode", 1), ("decode", 256), ("prefill", 65536))]
GROUP = [{"layers": 4, "miss_percent": 10, "batch": 8, "rows": 6560, "us_floor": 100.0,
          "us_one_call": 120.0, "us_replay_behind": 130.0, "us_replay_beside": 110.0, "wrong": 0}]
SHARED_PREFIX = [{"name": name, "batch": 64, "miss_percent": 10, "layers": 1, "rows_missed": 13120,
                  "rows_shared": shared, "host_bytes": 656.0 * (13120 - shared),
                  "times_fewer": 13120 / (13120 - shared), "us_median": 100.0, "us_p99": 110.0,
                  "wrong": 0} for name, shared in (("one call", 0), ("one call, shared", 11800))]
SCALE = [{"axis": axis, "value": value, "rows_per_step": 6560.0, "us_floor": 100.0,
          "us_median": 110.0, "us_p99": 120.0, "gb_per_s": 40.0, "wrong": 0}
         for axis, value in (("batch", 1), ("batch", 256), ("pool_gib", 64))]
RPC = [{"benchmark": "unary", "call": "GetStats", "workers": w, "bare_p50_us": 50.0,
        "bare_p99_us": 90.0, "bare_p999_us": 200.0, "p50_us": 60.0, "p99_us": 100.0,
        "p999_us": 250.0, "ratio_p50": 1.2, "ratio_p99": 1.11} for w in (1, 64)]
RPC += [{"benchmark": "many_blocks", "call": "AssignBlocks", "workers": 16, "blocks": 512,
         "p50_us": 1234.0, "p99_us": 2000.0, "p999_us": 3000.0}]

RESTART = [{"benchmark": "start", "gib": 1, "pool": "adopted", "listening_ms": 20.0,
            "ready_ms": 30.0, "first_attach_ms": 4.0, "second_attach_ms": 2.0, "wrong": 0},
           {"benchmark": "keeping", "caches": 64, "blocks": 1024, "record_bytes": 3 << 20,
            "listening_ms": 21.0, "ready_ms": 31.0, "list_ms": 1.5, "take_up_ms": 2.5},
           {"benchmark": "writes", "call": "assign a block and free it", "calls": 2000,
            "plain_p50_us": 100.0, "plain_p99_us": 200.0, "kept_p50_us": 110.0,
            "kept_p99_us": 210.0}]


def write_all(folder):
    for name, results in [("swap_in", SWAP_IN), ("backup", BACKUP), ("group", GROUP),
                          ("shared_prefix", SHARED_PREFIX), ("scale", SCALE), ("rpc", RPC),
                          ("restart", RESTART)]:
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(results, f)
        with open(os.path.join(folder, name + "_machine.json"), "w", encoding="utf-8") as f:
            json.dump(MACHINE, f)


class Tables(unittest.TestCase):

    def test_numbers_have_three_digits(self):
        self.assertEqual([bench_report.number(v) for v in (5.44, 99.96, 123.4, 1234.5, 65536, None)],
                         ["5.4", "100.0", "123", "1,234", "65,536", "-"])

    def test_swap_in_stands_beside_what_was_published(self):
        lines = bench_report.swap_in_table(SWAP_IN).splitlines()
        self.assertEqual(lines[0].count("|"), lines[1].count("|"))
        # miss 10, batch 8: rows, floor, ours, p99, GB/s, A, ratio, A published, best published.
        self.assertEqual(lines[-1], "| 10 | 8 | 1,638 | 30.0 | 18.0 | 19.8 | 59.7 | 36.0 | 2.00 | "
                                    "55.6 | 47.7 |")
        # Without misses there are neither bytes nor a floor; nobody published batch 8 of it.
        self.assertEqual(lines[3], "| 0 | 8 | 0 | - | 18.0 | 19.8 | - | 36.0 | 2.00 | - | - |")

    def test_a_run_of_ours_alone_has_no_ratio(self):
        result = swap_in_result(10, 1, 20.0)
        del result["us_design_a"]
        self.assertIn("| - | - | 45.4 | 31.2 |", bench_report.swap_in_table([result]))

    def test_every_row_has_a_cell_for_every_head(self):
        for make, results in [(bench_report.backup_table, BACKUP), (bench_report.group_table, GROUP),
                              (bench_report.shared_prefix_table, SHARED_PREFIX),
                              (bench_report.scale_table, SCALE), (bench_report.rpc_table, RPC)]:
            for block in make(results).split("\n\n"):
                counts = {line.count("|") for line in block.splitlines()}
                self.assertEqual(len(counts), 1, block)

    def test_machine_and_ceilings_are_told(self):
        self.assertEqual(bench_report.machine_line(MACHINE),
                         "Some GPU; 580; Some CPU; 16 threads; Linux 6; commit abc")
        self.assertEqual(bench_report.machine_line({}), "")
        self.assertIn("gather of 65,536 random rows 43.3 GB/s", bench_report.ceilings_line(MACHINE))
        self.assertEqual(bench_report.ceilings_line({}), "")


class Folder(unittest.TestCase):

    def report(self, folder, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = bench_report.main([folder, *arguments])
        return status, out.getvalue()

    def test_an_empty_one_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.report(folder), (0, "nothing was measured\n"))

    def test_a_wrong_result_is_no_result(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "swap_in.json"), "w", encoding="utf-8") as f:
                json.dump([swap_in_result(10, 1, 20.0, wrong=3)], f)
            status, text = self.report(folder)
        self.assertEqual(status, 1)
        self.assertTrue(text.endswith("WRONG: 3 results\n"), text)

    def test_every_benchmark_has_its_table(self):
        with tempfile.TemporaryDirectory() as folder:
            write_all(folder)
            status, text = self.report(folder)
        self.assertEqual(status, 0)
        for heading, _ in bench_report.REPORTS.values():
            self.assertIn("## " + heading, text)

    @unittest.skipUnless(matplotlib, "no matplotlib (tools/install_deps bench)")
    def test_plots_are_the_same_for_the_same_numbers(self):
        drawn = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                write_all(folder)
                status, text = self.report(folder, "--plots=" + os.path.join(folder, "plots"))
                self.assertEqual(status, 0)
                plots = {}
                for name in sorted(os.listdir(os.path.join(folder, "plots"))):
                    with open(os.path.join(folder, "plots", name), encoding="utf-8") as f:
                        plots[name] = f.read()
                drawn.append(plots)
                self.assertEqual(text.count("plot: "), len(plots))
        self.assertEqual(list(drawn[0]), ["backup.svg", "rpc.svg", "scale.svg", "swap_in.svg"])
        self.assertEqual(drawn[0], drawn[1])
        for name, text in drawn[0].items():
            self.assertIn("kvtierd", text, name)


if __name__ == "__main__":
    unittest.main()
