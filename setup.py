"""Declares the package tfdist."""

import re
from pathlib import Path

from setuptools import find_packages, setup

_ROOT = Path(__file__).parent

# Read as text: importing tfdist would need TensorFlow before it can be installed.
_VERSION = re.search(
    r'^__version__ = "([^"]+)"$', (_ROOT / "tfdist" / "__init__.py").read_text(), re.MULTILINE
).group(1)

# The same lower bounds as in tfdist/_versions.py, which warns at import of a release that is newer
# than those that were tested. pip would refuse it, and often nothing is wrong with it.
_TENSORFLOW = ">=2.20,<3"
_KERAS = ">=3.10,<4"

_EXAMPLES = ["scikit-learn", "matplotlib"]
_TEST = [
    *_EXAMPLES,
    "pytest>=8,<9.2",  # pytest-xdist 3.8 cannot group tests under 9.2
    "pytest-xdist",
    "hypothesis",
    "scipy",
    "tensorboard",
    "pyte",
    # The schemas of JobSet and Kubeflow Trainer, as classes, for the manifests in the examples.
    "kubeflow-trainer-api>=2.3,<3",
    "pyyaml",
    # What passes depends on the release of these two, so a new one is taken up by hand.
    "ruff>=0.17,<0.18",
    "mypy>=2.4,<2.5",
    # Not used but refused: tests hand its models and optimizers to tfdist.
    f"tf_keras{_TENSORFLOW}",
]

setup(
    name="tfdist",
    version=_VERSION,
    description="Data-parallel Keras 3 training on TensorFlow that equals training on one device",
    long_description=(_ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    package_data={"tfdist": ["py.typed", "watch/page.html"]},
    packages=find_packages(include=["tfdist", "tfdist.*"]),
    python_requires=">=3.10,<3.14",
    install_requires=[
        f"tensorflow{_TENSORFLOW}",
        f"keras{_KERAS}",
        "numpy",
        "click>=8.2",
        "rich",
        "typing_extensions",
        # In the releases that TensorFlow and Keras ask for.
        "h5py",
        "ml_dtypes",
        "protobuf",
    ],
    entry_points={"console_scripts": ["tfdist = tfdist.cli.main:main"]},
    # No extra for Horovod: pip alone compiles it for minutes against a header that TensorFlow has
    # moved, and fails. scripts/install_horovod.py builds it and installs what it needs.
    extras_require={
        "cuda": [f"tensorflow[and-cuda]{_TENSORFLOW}"],
        "examples": _EXAMPLES,
        "test": _TEST,
        "docs": ["sphinx>=8.1", "myst-parser>=4", "furo>=2024.8.6", "sphinx-polyversion>=3"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
