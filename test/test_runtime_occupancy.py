"""How many CTAs to launch: what the driver says of clusters, and without a driver."""

from __future__ import annotations

import ctypes
from unittest import mock

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.runtime import device, occupancy


class Driver:
    """libcuda of a GPU with GPCs of these many SMs; fails at the named call."""

    def __init__(self, gpcs: tuple[int, ...], fails: str = "") -> None:
        self.gpcs = gpcs
        self.fails = fails
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        def call(*args):
            self.calls.append(name)
            if name == self.fails:
                return 1
            if name == "cuOccupancyMaxActiveClusters":
                self.answer(*args)
            return 0

        return call

    def answer(self, found, function, config) -> None:
        asked = ctypes.cast(config, ctypes.POINTER(occupancy._Config)).contents
        attribute = asked.attributes[0]
        size = attribute.value.cluster.x
        if (attribute.id, asked.attribute_count, asked.grid_x) != (4, 1, size):
            raise ValueError("not a question about this cluster")
        if asked.shared_bytes <= 227 * 1024 // 2:
            raise ValueError("two CTAs would share an SM")
        total = sum(gpc // size for gpc in self.gpcs)
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int)).contents.value = total


H200_LIKE = (18, 18, 18, 16, 16, 16, 16, 14)


class TestOccupancy(TestCase):
    def ask(self, driver: object, size: int) -> int | None:
        with mock.patch.object(ctypes, "CDLL", return_value=driver):
            return occupancy.max_clusters(size)

    @parametrize("size,clusters", [(2, 66), (4, 31), (8, 15)])
    def test_the_driver_is_asked_for_this_cluster(self, size, clusters):
        driver = Driver(H200_LIKE)
        self.assertEqual(self.ask(driver, size), clusters)
        self.assertEqual(driver.calls[-1], "cuModuleUnload")

    @parametrize(
        "call",
        [
            "cuModuleLoadData",
            "cuModuleGetFunction",
            "cuFuncSetAttribute",
            "cuOccupancyMaxActiveClusters",
        ],
    )
    def test_an_error_is_no_answer(self, call):
        driver = Driver(H200_LIKE, call)
        self.assertIsNone(self.ask(driver, 4))
        loaded = call != "cuModuleLoadData"
        self.assertEqual(driver.calls.count("cuModuleUnload"), int(loaded))

    def test_no_driver(self):
        with mock.patch.object(ctypes, "CDLL", side_effect=OSError("no libcuda")):
            self.assertIsNone(occupancy.max_clusters(4))

    def test_the_structures_are_the_driver_s(self):
        # cuda.h: CUlaunchAttribute is 4 bytes, 4 of padding, a union of 64.
        self.assertEqual(ctypes.sizeof(occupancy._Attribute), 72)
        self.assertEqual(occupancy._Attribute.value.offset, 8)
        # Seven unsigned ints, padding, two pointers, one unsigned int, padding.
        self.assertEqual(occupancy._Config.stream.offset, 32)
        self.assertEqual(occupancy._Config.attributes.offset, 40)
        self.assertEqual(ctypes.sizeof(occupancy._Config), 56)


class TestResidentCtas(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(device._resident, clear=True))
        self.enterContext(mock.patch.object(device, "sm_count", return_value=132))
        self.patch(is_available=True, is_current_stream_capturing=False)
        self.enterContext(mock.patch.object(torch.cuda, "synchronize"))
        self.enterContext(mock.patch.object(torch.cuda, "device"))

    def patch(self, **values: bool) -> None:
        for name, value in values.items():
            replaced = mock.patch.object(torch.cuda, name, return_value=value)
            self.enterContext(replaced)

    def asked(self, size: int, answer: int | None) -> tuple[int, int]:
        """CTAs, and how often the driver was asked in two calls."""
        with mock.patch.object(occupancy, "max_clusters", return_value=answer) as ask:
            first = device.resident_ctas(0, size)
            self.assertEqual(device.resident_ctas(0, size), first)
            return first, ask.call_count

    def test_single_ctas_need_no_question(self):
        self.assertEqual(self.asked(1, None), (132, 0))

    def test_clusters_as_the_driver_says_asked_once(self):
        self.assertEqual(self.asked(4, 30), (120, 1))

    def test_without_an_answer_whole_clusters(self):
        self.assertEqual(self.asked(8, None), (128, 1))

    def test_never_more_than_the_sms(self):
        self.assertEqual(self.asked(4, 66), (132, 1))

    def test_a_capture_is_not_disturbed_and_nothing_is_kept(self):
        with mock.patch.object(
            torch.cuda, "is_current_stream_capturing", return_value=True
        ):
            self.assertEqual(self.asked(4, 30), (132, 0))
        self.assertEqual(self.asked(4, 30), (120, 1))

    def test_the_model_assumes_what_was_measured(self):
        slots = {size: SM90.cluster_slots(size) for size in (1, 2, 4)}
        self.assertEqual((slots[1], slots[2]), (132, 66))
        self.assertIn(slots[4], range(28, 32))


instantiate_parametrized_tests(TestOccupancy)

if __name__ == "__main__":
    run_tests()
