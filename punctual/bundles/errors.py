"""Why a bundle is refused."""


class BundleError(ValueError):
    """A refusal.

    Attributes:
        reason: a short name for programs. detail: a sentence. field: the part of an upload that is to blame.
    """

    def __init__(self, reason: str, detail: str, *, field: str = "bundle") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.field = field
