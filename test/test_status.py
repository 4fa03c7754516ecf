"""``Status``: truth, reasons, combination."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.status import Status


class TestStatus(TestCase):
    def test_ok(self):
        self.assertTrue(Status.ok())
        self.assertEqual(str(Status.ok()), "ok")

    def test_no_keeps_its_reasons_in_order(self):
        status = Status.no("first", "second")
        self.assertFalse(status)
        self.assertEqual(str(status), "first; second")

    def test_no_without_a_reason_is_a_bug(self):
        with self.assertRaisesRegex(ValueError, "at least one reason"):
            Status.no()

    def test_and_is_supported_iff_both_are(self):
        ok, a, b = Status.ok(), Status.no("a"), Status.no("b", "a")
        self.assertTrue(ok & ok)
        self.assertEqual((ok & a).reasons, ("a",))
        self.assertEqual((a & ok).reasons, ("a",))
        self.assertEqual((a & b).reasons, ("a", "b"))

    def test_check_collects_what_does_not_hold(self):
        self.assertTrue(Status.check())
        self.assertTrue(Status.check((True, "unused")))
        status = Status.check((False, "x"), (True, "y"), (False, "z"))
        self.assertEqual(status.reasons, ("x", "z"))

    def test_is_frozen(self):
        with self.assertRaises(FrozenInstanceError):
            Status.ok().reasons = ("changed",)


if __name__ == "__main__":
    run_tests()
