"""Candidates from NVIDIA's package: what its answers become. The package is optional,
so its answers are stood in for here; one test asks it where it is installed."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.errors import UserError
from torch_cute_backend.tuning import heuristics

PROBLEM = problem_of("fp8", (64, 5120, 5120))


def answer(m: int, n: int, k: int, **changes: int) -> dict:
    kernel = {
        "cta_tile_m": m,
        "cta_tile_n": n,
        "cta_tile_k": k,
        "cluster_m": 1,
        "cluster_n": 1,
        "cta_order": 0,
        "split_k": 1,
    }
    return {"kernel": SimpleNamespace(**kernel | changes)}


class Package:
    """Stands in for the package's interface; remembers what it was asked."""

    def __init__(self, answers: list[dict]) -> None:
        self.answers = answers
        self.asked: list[tuple] = []

    def makeNvMatmulHeuristicsProblem(self, m: int, n: int, k: int, layout: object):
        return (m, n, k, layout)

    def get(self, question: tuple, count: int, precision: str) -> list[dict]:
        self.asked.append((*question, count, precision))
        return self.answers


def ask(answers: list[dict], problem=PROBLEM, arch=SM90, limit: int = 4):
    package = Package(answers)
    names = SimpleNamespace(
        NvMatmulHeuristicsMatmulLayout=SimpleNamespace(
            NT_ROW_MAJOR="NT", NN_ROW_MAJOR="NN"
        )
    )
    with (
        mock.patch.object(heuristics, "_interface", return_value=package),
        mock.patch.object(heuristics.importlib, "import_module", return_value=names),
    ):
        return heuristics.candidates(problem, arch, limit), package.asked


class TestHeuristics(TestCase):
    def test_tile_cluster_and_raster_are_kept(self):
        found, _ = ask([answer(64, 40, 128, cluster_n=2, cta_order=1)])
        (s,) = found
        self.assertEqual((s.tile_m, s.tile_n, s.tile_k), (64, 40, 128))
        self.assertEqual((s.cluster_m, s.cluster_n), (1, 2))
        self.assertEqual(s.raster, "along_n")
        self.assertTrue(s.validate(PROBLEM, SM90))

    def test_tall_tiles_get_two_warpgroups_on_hopper_only(self):
        problem = problem_of("bf16", (4096, 4096, 4096))
        tall = [answer(128, 128, 64)]
        self.assertEqual(ask(tall, problem)[0][0].math_warpgroups, 2)
        self.assertEqual(ask(tall, problem, SM100)[0][0].math_warpgroups, 1)

    def test_what_our_kernels_cannot_take_is_left_out(self):
        found, _ = ask(
            [
                answer(64, 64, 128, split_k=3),
                answer(64, 64, 64),
                answer(96, 64, 128),
                answer(64, 64, 128, cluster_n=3),
                answer(64, 64, 128),
                answer(64, 64, 128),
            ]
        )
        self.assertEqual([s.describe() for s in found], ["64x64x128_s13"])

    def test_limit(self):
        answers = [answer(64, n, 128) for n in (16, 32, 64, 128)]
        found, asked = ask(answers, limit=2)
        self.assertEqual([s.tile_n for s in found], [16, 32])
        self.assertEqual(asked[0][4], 2 * heuristics._ASKED)

    def test_the_question(self):
        _, asked = ask([])
        self.assertEqual(asked[0][:4], (64, 5120, 5120, "NT"))
        self.assertEqual(asked[0][5], "QQTST")
        _, asked = ask([], problem_of("bf16-bn", (64, 512, 256)))
        self.assertEqual((asked[0][3], asked[0][5]), ("NN", "TTTST"))

    def test_without_the_package(self):
        heuristics._interface.cache_clear()
        with mock.patch.object(heuristics, "available", return_value=False):
            self.assertRaises(UserError, heuristics.candidates, PROBLEM, SM90)

    def test_the_package_itself(self):
        if not heuristics.available():
            # Its absence is the other half of what is promised.
            self.assertRaises(UserError, heuristics.candidates, PROBLEM, SM90)
            return
        for arch in (SM90, SM100):
            for kind in ("fp8", "bf16", "bf16-bn"):
                problem = problem_of(kind, (512, 4096, 2048))
                found = heuristics.candidates(problem, arch)
                self.assertGreaterEqual(len(found), 1)
                for s in found:
                    self.assertTrue(s.validate(problem, arch))


if __name__ == "__main__":
    run_tests()
