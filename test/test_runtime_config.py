"""Settings: from the environment, patched, seen by every thread."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend import config
from torch_cute_backend.errors import UserError


class TestConfig(TestCase):
    def test_the_readme_lists_every_variable(self):
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        listed = re.findall(rf"^\| `{config.PREFIX}(\w+)` ", readme, re.MULTILINE)
        settings = {name.upper() for name in vars(config.from_environ({}))}
        self.assertEqual(set(listed), settings | {"AUTOLOAD"})

    def test_every_setting_has_its_variable(self):
        texts = {bool: "0", int: "7", float: "1.5"}
        defaults = config.from_environ({"XDG_CACHE_HOME": "/cache"})
        for field, value in vars(defaults).items():
            name = config.PREFIX + field.upper()
            text = texts.get(type(value), "/elsewhere")
            if isinstance(value, bool):
                text = "0" if value else "1"
            changed = config.from_environ({"XDG_CACHE_HOME": "/cache", name: text})
            others = {k: v for k, v in vars(changed).items() if k != field}
            self.assertNotEqual(getattr(changed, field), value)
            self.assertEqual(others, {k: vars(defaults)[k] for k in others})

    @parametrize(
        "name,text",
        [
            ("ENABLED", "maybe"),
            ("COMPILE_WORKERS", "0"),
            ("COMPILE_WORKERS", "two"),
            ("COMPILE_TIMEOUT_S", "-1"),
            ("COMPILE_TIMEOUT_S", "nan"),
        ],
        name_fn=lambda name, text: f"{name}_{text.replace('-', 'minus_')}",
    )
    def test_malformed(self, name, text):
        variable = config.PREFIX + name
        with self.assertRaisesRegex(UserError, f"{variable}='{text}' is not"):
            config.from_environ({variable: text})

    def test_cache_dir(self):
        found = config.from_environ({"XDG_CACHE_HOME": "/x"}).cache_dir
        self.assertEqual(found, Path("/x/torch_cute_backend"))
        default = config.from_environ({}).cache_dir
        self.assertTrue(default.is_absolute())
        self.assertIn("torch_cute_backend", default.name)

    def test_patch_is_seen_by_other_threads_and_undone(self):
        before = config.get()
        seen = []
        with config.patch(compile_workers=17):
            thread = threading.Thread(
                target=lambda: seen.append(config.get().compile_workers)
            )
            thread.start()
            thread.join()
        self.assertEqual(seen, [17])
        self.assertEqual(config.get(), before)


instantiate_parametrized_tests(TestConfig)

if __name__ == "__main__":
    run_tests()
