"""Why a bundle is refused."""

from projects.errors import InvalidRequest


class BundleError(InvalidRequest):
    """A refusal. ``code`` is ``bundle_<reason>``; ``field`` is the part of the upload that is to blame."""

    title = "Unusable bundle"

    def __init__(self, reason: str, detail: str, *, field: str = "bundle") -> None:
        super().__init__(detail, errors={field: [detail]})
        self.reason = reason
        self.field = field
        self.code = f"bundle_{reason}"
