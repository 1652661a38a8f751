"""Training functions: content-addressed bundles, their environments and their scaling curves."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models.leased_work import LeasedWork, lease_constraints
from projects.models import Project
from scheduling.choices import CurveState
from scheduling.core.runtime_plans.plan import PlanFamily


class Bundle(models.Model):
    """The bytes of an uploaded function, addressed by their SHA-256 digest. Never changed."""

    #: SHA-256 of the content.
    digest = models.CharField(max_length=64, primary_key=True)
    #: The zip file or Python source.
    content = models.BinaryField()
    size_bytes = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)


class Function(models.Model):
    """A named function of a project; its versions hold the code."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="functions")
    name = models.SlugField(max_length=100)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="function_name_once_per_project")
        ]

    def __str__(self) -> str:
        return self.name


class FunctionVersion(models.Model):
    """An immutable version of a function. Entry, class and ``speed_neutral`` are read from the syntax
    tree."""

    function = models.ForeignKey(Function, on_delete=models.CASCADE, related_name="versions")
    #: 1, 2, ... within the function.
    number = models.PositiveIntegerField()
    bundle = models.ForeignKey(Bundle, on_delete=models.PROTECT)
    entry = models.CharField(max_length=200, help_text="module:Class")
    speed_neutral = models.JSONField(default=list)
    #: Permitted numbers of workers; empty: powers of two.
    worker_counts = models.JSONField(default=list)
    #: Numbers of experts of its layers, from its source; empty if the source does not say, null without
    #: layers.
    experts = models.JSONField(null=True, default=None)
    #: The class's docstring.
    description = models.TextField(blank=True)
    #: Digest of the requirements; empty without any.
    requirements_digest = models.CharField(max_length=64, blank=True)
    #: Files of the bundle, up to a thousand with long paths: queries for many rows defer this column.
    files = models.JSONField(default=list)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["function", "number"], name="version_number_once_per_function"),
            models.UniqueConstraint(fields=["function", "bundle", "entry"], name="bundle_once_per_function"),
        ]


#: Column to defer if many jobs are joined with their function's version.
UNREAD_OF_VERSION = "function_version__files"


def versions_of_many() -> models.Prefetch[str]:
    """Return a prefetch of many jobs' versions in one query, without their files."""
    return models.Prefetch("function_version", FunctionVersion.objects.defer("files"))


class Environment(LeasedWork):
    """Installed requirements, an overlay on the runtime's environment, keyed by the digest of the file's
    text. ``project``: the one that requested the build."""

    digest = models.CharField(max_length=64, primary_key=True)
    requirements = models.TextField()
    project = models.ForeignKey(Project, on_delete=models.SET_NULL, null=True, related_name="+")
    #: The installer's output; its end while it runs.
    log = models.TextField(blank=True)
    uri = models.CharField(max_length=500, blank=True)
    size_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = lease_constraints("environment")


class ScalingCurve(models.Model):
    """Measured throughput by number of GPUs for one curve key.

    ``complete`` once profiling stopped because more GPUs gave no gain; until then higher levels may still be
    measured on idle GPUs.
    """

    key = models.CharField(max_length=64, unique=True)
    function_digest = models.CharField(max_length=64, db_index=True)
    data_digest = models.CharField(max_length=64, blank=True)
    gpu_kind = models.CharField(max_length=100)
    #: Plan family of its measurements.
    plan_family = models.CharField(max_length=100, default=PlanFamily.DENSE.value)
    #: Those on which the speed depends.
    hyperparameters = models.JSONField(default=dict)
    #: Sizes of the model's mixture-of-experts layers as a worker reported them (`Mixture`); null without.
    mixture = models.JSONField(null=True, default=None)
    state = models.CharField(max_length=10, choices=CurveState.choices, default=CurveState.UNKNOWN)
    complete = models.BooleanField(default=False)
    #: Why it cannot be measured; empty otherwise.
    failure = models.TextField(blank=True)
    finishing_seconds = models.FloatField(default=0.0)
    #: Times to store a durable state of its jobs, as if one worker stored all of it: for how long training
    #: stops, and from then until it is stored. Null until a state was stored during training.
    copy_seconds = models.FloatField(null=True, blank=True)
    storing_seconds = models.FloatField(null=True, blank=True)
    #: Greatest age of the newest point in its jobs' memory while all copies existed, in iterations. Null
    #: until measured.
    point_iterations = models.FloatField(null=True, blank=True)
    state_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    measured_at = models.DateTimeField(null=True, blank=True)


#: A measurement on an emulated device with a larger overrun is void.
VOID_OVERRUN = 0.05
#: Levels that show the speed of devices. Only these are compared with each other.
NOT_VOID = Q(overrun__isnull=True) | Q(overrun__lte=VOID_OVERRUN)


class CurveLevel(models.Model):
    """One measured level. ``train_seconds``: the function's own share of an iteration."""

    curve = models.ForeignKey(ScalingCurve, on_delete=models.CASCADE, related_name="levels")
    gpus = models.PositiveIntegerField()
    iterations_per_second = models.FloatField()
    train_seconds = models.FloatField(default=0.0)
    pause_seconds = models.FloatField(default=0.0)
    memory_bytes = models.BigIntegerField(default=0)
    #: Peak host memory of one worker, and the bytes reserved for each; 0 if not measured: then a worker has
    #: its GPU's share.
    host_memory_bytes = models.BigIntegerField(default=0)
    reserved_memory_bytes = models.BigIntegerField(default=0)
    #: On an emulated device: by which fraction measuring took longer than emulated because the host was too
    #: slow; null on real devices and for old levels.
    overrun = models.FloatField(null=True, blank=True)
    profiled_iterations_per_second = models.FloatField(default=0.0)
    profiled_train_seconds = models.FloatField(default=0.0)
    #: Number of measurements behind the figures.
    samples = models.PositiveIntegerField(default=1)
    source = models.CharField(
        max_length=10, default="profiled", choices=[("profiled", "Profiled"), ("live", "Live")]
    )
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["gpus"]
        constraints = [
            models.UniqueConstraint(fields=["curve", "gpus"], name="curve_level_once"),
            models.CheckConstraint(
                condition=Q(gpus__gt=0) & Q(iterations_per_second__gt=0), name="curve_level_positive"
            ),
        ]

    @property
    def void(self) -> bool:
        """Whether it shows the speed of the host instead of that of the emulated device. It is kept, since
        the job runs on that host."""
        return self.overrun is not None and self.overrun > VOID_OVERRUN
