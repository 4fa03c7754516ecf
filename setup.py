"""Packaging. Tool settings (ruff, mypy, pytest) are in ``pyproject.toml``."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((HERE / "torch_cute_backend" / "version.py").read_text(), VERSION)

setup(
    name="torch-cute-backend",
    version=VERSION["__version__"],
    description="CuTe DSL GEMM kernels as an Inductor backend for torch.compile",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["torch_cute_backend", "torch_cute_backend.*"]),
    py_modules=["torch_cute_backend_autoload"],
    package_data={"torch_cute_backend": ["py.typed", "tuning/tables/*.json"]},
    # The reason for each dependency is in CONTRIBUTING.md.
    install_requires=[
        "torch>=2.11,<2.15",
        "nvidia-cutlass-dsl[cu13]>=4.8.1,<4.9",
        "apache-tvm-ffi>=0.1.9",
        "numpy",
    ],
    extras_require={
        "test": [
            "codespell",
            "expecttest",
            "mypy>=1.15",
            "pytest>=8",
            "pytest-timeout",
            "pytest-xdist",
            "ruff>=0.9",
        ],
        "bench": ["nvidia-matmul-heuristics"],
    },
    entry_points={
        "console_scripts": ["torch-cute = torch_cute_backend.cli.main:main"],
        "torch_dynamo_backends": [
            "cute = torch_cute_backend.inductor.backend:compile_cute",
            "cute_sim = torch_cute_backend.inductor.backend:compile_cute_sim",
        ],
        "torch.backends": ["torch_cute_backend = torch_cute_backend_autoload:autoload"],
    },
    classifiers=[
        "License :: OSI Approved :: BSD License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
    ],
)
