"""ContractError: what a refused call raises."""

from typing import Any


class ContractError(ValueError):
    """A call broke the contract of an op. Nothing was written.

    str(error) is the whole text: what is wrong, the likely cause, how to mend it, and where to read more.

    Fields, all strings:
        code      "RP006", the same in every language and release
        name      "v-shape-mismatch"
        argument  which argument: "v"
        expected  what it should be: "(4, 2, 64)"
        actual    what it is: "(4, 10, 64)"
        cause     the mistake that fits what was passed; "" where none does
        hint      how to mend it
        url       the page of the error reference, relative to its site
        summary   the first line of the text
    """

    __module__ = "ropepool"

    def __init__(
        self,
        message: str,
        code: str = "",
        name: str = "",
        argument: str = "",
        expected: str = "",
        actual: str = "",
        cause: str = "",
        hint: str = "",
        url: str = "",
        summary: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.argument = argument
        self.expected = expected
        self.actual = actual
        self.cause = cause
        self.hint = hint
        self.url = url
        self.summary = summary

    def __reduce__(self) -> tuple[Any, ...]:
        # ValueError alone would call the class with the message only. The fields come back with the state, as notes do.
        return type(self), self.args, self.__dict__

    def __repr__(self) -> str:
        return f"<ContractError {self.code} {self.name}: {self.summary}>"
