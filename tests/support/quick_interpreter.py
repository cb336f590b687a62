"""Triton's interpreter without its repeated work, for processes that compile no kernel."""

from triton.runtime import interpreter


class _Kept:
    """A scope of patches that stay."""

    def restore(self) -> None:
        pass


def hurry() -> None:
    """Patch `triton.language` once, not for every call of a function, and check no integer sums."""
    patch, done = interpreter._patch_lang, set()

    def patch_once(function):
        if id(function.__globals__) not in done:
            done.add(id(function.__globals__))
            patch(function)
        return _Kept()

    interpreter._patch_lang = patch_once
    options = interpreter.interpreter_builder.options
    object.__setattr__(options, "sanitize_overflow", False)
