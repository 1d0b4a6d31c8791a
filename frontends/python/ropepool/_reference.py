"""The error reference."""

from typing import TypedDict

from ropepool._error import ContractError
from ropepool._ext import find_error


class ErrorExample(TypedDict):
    """Python source that raises the error, and the same mended."""

    failing: str
    mended: str


class ErrorPlace(TypedDict):
    """Where in ropepool's source the refusal is decided."""

    file: str
    function: str


class ErrorEntry(TypedDict):
    """An entry of the error reference, as in `ropepool errors --json`."""

    code: str
    name: str
    message: str
    argument: str
    meaning: str
    trigger: str
    situations: list[str]
    solutions: list[str]
    example: ErrorExample
    guard: str
    related: list[str]
    url: str
    where: ErrorPlace


def explain(text_or_code: str | int | ContractError) -> ErrorEntry:
    """The entry of the error reference that fits: what the refusal means, what leads to it and how to mend it.

    Takes a code ("RP006", also C's number 6), a name ("v-shape-mismatch"), any text that holds a code or a message, such as
    the end of a log, or the ContractError itself. A LookupError says that nothing fits.

    >>> import ropepool
    >>> ropepool.explain("ValueError: v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)")["name"]
    'v-shape-mismatch'
    """
    if isinstance(text_or_code, ContractError):
        text_or_code = text_or_code.code
    elif isinstance(text_or_code, int):
        text_or_code = str(text_or_code)
    elif not isinstance(text_or_code, str):
        raise TypeError(f"explain takes a text, a code or a ContractError, not {type(text_or_code).__name__}")
    # A log read with errors="surrogateescape" has lone surrogates for bytes that are no text; they say nothing here.
    entry = find_error(text_or_code.encode(errors="replace").decode())
    if entry is None:
        raise LookupError(
            f"no entry of the error reference fits {text_or_code!r}: pass a code (RP006), a name (v-shape-mismatch) or a "
            "message; ropepool.errors() lists all entries"
        )
    return entry
