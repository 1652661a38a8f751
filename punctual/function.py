"""The function API: the code that a user writes for Punctual to train.

A training function is single-device PyTorch code in one class (ElasticFlow, Table 1). It never sees ranks,
devices, processes or the number of GPUs: the runtime splits the global batch, runs the backward pass,
averages gradients, clips, steps, checkpoints, and moves the training between GPUs while it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from punctual.protocol.limits import artifact_name_problem
from punctual.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset

# torch is imported inside methods only: see punctual/randomness.py.


class TrainingFunction(ABC):
    """Base class of every training function; subclass it and define four methods. A fifth, `predict`, makes
    its jobs deployable.

    Attributes:
        speed_neutral: names of hyperparameters that change neither throughput nor memory. Jobs that differ
            only in these share one measured scaling curve. Must be a literal, because the server reads it
            without running the file.
        worker_counts: numbers of workers on which the function runs, if its experts or shards allow only
            some, such as {3, 6, 12}. Empty: any power of two. Must be a literal too.
        hyperparameters: those of the job, including `global_batch_size`.
    """

    speed_neutral: ClassVar[set[str]] = {"learning_rate"}
    worker_counts: ClassVar[set[int]] = set()

    def __init__(self, hyperparameters: Mapping[str, Any]) -> None:
        self.hyperparameters = dict(hyperparameters)

    @abstractmethod
    def init_model(self) -> nn.Module:
        """Build the model on the CPU. Random initialisation is seeded by the job's seed."""

    @abstractmethod
    def init_dataset(self) -> Dataset[Any]:
        """Build the map-style data set (`__len__`, `__getitem__`); the same for the same hyperparameters.

        A data set that also has `__getitems__(indices)` gets a whole local batch at once, or one sample at a
        time if it draws random numbers there.
        """

    def tasks(self) -> Mapping[str, Task]:
        """Declare the tasks of a model that learns several at once, by name; none by default.

        `init_dataset` then returns a `ConcatDataset` with one data set for each task, in the same order. Each
        batch contains samples of all tasks in proportion to their shares. A worker gets samples of few tasks,
        so that loads are even.
        """
        return {}

    @abstractmethod
    def init_optimizer(self, model: nn.Module) -> Optimizer:
        """Build one optimizer over the model's parameters."""

    @abstractmethod
    def train(self, batch: Any, model: nn.Module) -> Tensor | tuple[Tensor, Mapping[str, Any]]:
        """Compute one iteration's forward pass and its *mean* loss over `batch`; no backward, no step.

        The runtime weights the losses of unequal local batches, so the mean over the given samples yields the
        gradient of the global batch. Metrics are averaged over the global batch in the same way.
        """

    def init_scheduler(self, optimizer: Optimizer) -> LRScheduler | None:
        """Build a learning-rate scheduler, which is stepped once per iteration; None for none."""
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Join samples into a batch; the default is PyTorch's."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    def evaluate(self, model: nn.Module) -> Mapping[str, Any]:
        """Measure the model, in evaluation mode and without gradients. Called at the end of the job, and
        every `evaluate_every` iterations if that hyperparameter is set."""
        return {}

    def predict(self, batch: list[Any], model: nn.Module) -> Any:
        """Answer requests to a deployment of the trained model: return one output for each input, as a tensor
        or a list.

        A batch contains the inputs of several requests, as JSON values; `punctual.as_tensor` checks them and
        makes a tensor. The model has the final weights, is in evaluation mode, and gradients are off. A
        ValueError reports an invalid input: the requests are then tried one by one, and the one with that
        input gets a 400 with its message. After any other exception such a request gets a 500.
        """
        raise NotImplementedError("this function has no predict(batch, model), so it cannot be deployed")

    def should_stop(self, metrics: Mapping[str, float]) -> bool:
        """Return whether to stop after this iteration, given its metrics (and those of `evaluate` if it just
        ran)."""
        return False

    def state_dict(self) -> Mapping[str, Any]:
        """Return the function's own state between iterations: tensors, numbers, strings, lists and dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        return


class DataNotDeclaredError(LookupError):
    """A function requested data that its job does not declare."""


_folders: dict[str, Path] = {"data": Path("data"), "artifacts": Path("artifacts")}


def data_path(name: str) -> Path:
    """Return the path of the declared data `name` on this node, read-only.

    Outside the platform this is ``data/<name>`` in the current folder, for local trials.

    Raises:
        DataNotDeclaredError: the job declares no data of that name.
    """
    folder = _folders["data"]
    path = folder / name
    if path.parent != folder or not path.exists():
        present = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        raise DataNotDeclaredError(
            f"no data named {name!r} is declared for this job (declared: {', '.join(present) or 'none'})"
        )
    return path


def artifact_path(name: str) -> Path:
    """Return a path for a file that `evaluate` keeps with the final weights (a figure, a vocabulary).

    Files written at the end of the job become downloadable; earlier ones may be lost when the job moves.
    """
    if Path(name).name != name or name in {"weights.pt", "metrics.json", "expert_paths.pt", "", ".", ".."}:
        raise ValueError(f"an artifact needs a plain file name of its own, not {name!r}")
    problem = artifact_name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    folder = _folders["artifacts"]
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def set_folders(data: Path, artifacts: Path) -> None:
    """For the runtime: set the folders of declared data and artifacts."""
    _folders["data"] = data
    _folders["artifacts"] = artifacts
