"""What pyproject.toml cannot say: the CPU kernels are compiled at installation, where that works."""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).parent))
from build_kernels import LIBRARY, KernelsNotBuiltError, build_or_leave_reason


class BuildKernels(build_ext):
    """Put the library, or the reason why there is none, beside the module that loads it."""

    missing: str | None = None

    def run(self) -> None:
        """Build into the wheel, or for an editable install into the sources."""
        library = Path(self.get_ext_fullpath(self.extensions[0].name))
        try:
            self.missing = build_or_leave_reason(library.parent)
        except KernelsNotBuiltError as failure:
            raise CompileError(str(failure)) from None
        if self.missing:
            self.warn(self.missing)

    def get_ext_filename(self, fullname: str) -> str:
        """A plain name: the library knows nothing of Python."""
        return str(Path(*fullname.split(".")).with_name(LIBRARY))


class KernelsWheel(bdist_wheel):
    """One wheel for all versions of Python, and without the library for all machines."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag in the name of the wheel."""
        if self.get_finalized_command("build_ext").missing:
            return "py3", "none", "any"
        # On macOS a Python of two architectures still compiles for the one it runs on.
        built_for = super().get_tag()[2].replace("universal2", platform.machine())
        return "py3", "none", built_for


setup(
    ext_modules=[Extension("scale_invariant_attention.attention._kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": KernelsWheel},
)
