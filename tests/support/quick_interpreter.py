"""Triton's interpreter without its repeated work: the language is patched once, not for every call."""

from triton.runtime import interpreter


class _Kept:
    """A scope of patches that stay."""

    def restore(self) -> None:
        pass


def patch_the_language_once() -> None:
    """Keep the interpreter's patches of `triton.language`: this process compiles no kernel."""
    patch, done = interpreter._patch_lang, set()

    def patch_once(function):
        if id(function.__globals__) not in done:
            done.add(id(function.__globals__))
            patch(function)
        return _Kept()

    interpreter._patch_lang = patch_once
