"""The error of a refused bundle."""


class BundleError(ValueError):
    """A refused bundle.

    Attributes:
        reason: a short name for programs. detail: a sentence. field: the part of an upload with the error.
    """

    def __init__(self, reason: str, detail: str, *, field: str = "bundle") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.field = field
