"""Published baselines, which only simulations choose. A baseline is one file in a room and one line here."""

from __future__ import annotations

from scheduling.policies.base import Policy
from simulation.baselines.against_elasticflow.chronus import Chronus
from simulation.baselines.against_elasticflow.edf import Edf
from simulation.baselines.against_elasticflow.edf_admission import EdfAdmission
from simulation.baselines.against_elasticflow.edf_admission_artifact import EdfAdmissionArtifact
from simulation.baselines.against_elasticflow.edf_artifact import EdfArtifact
from simulation.baselines.against_elasticflow.edf_elastic import EdfElastic
from simulation.baselines.against_elasticflow.gandiva import Gandiva
from simulation.baselines.against_elasticflow.gandiva_artifact import GandivaArtifact
from simulation.baselines.against_elasticflow.pollux import Pollux
from simulation.baselines.against_elasticflow.themis import Themis
from simulation.baselines.against_elasticflow.tiresias import Tiresias
from simulation.baselines.against_lyra.afs import Afs
from simulation.baselines.against_lyra.fifo import Fifo, FifoBackfill
from simulation.baselines.against_lyra.lyra_gandiva import LyraGandiva
from simulation.baselines.against_lyra.lyra_pollux import LyraPollux
from simulation.baselines.against_lyra.lyra_tuned import LyraTuned
from simulation.baselines.against_lyra.opportunistic import Opportunistic
from simulation.baselines.against_lyra.sjf import Sjf

BASELINES: tuple[Policy, ...] = (
    Edf(),
    EdfArtifact(),
    EdfAdmission(),
    EdfAdmissionArtifact(),
    EdfElastic(),
    Gandiva(),
    GandivaArtifact(),
    Tiresias(),
    Themis(),
    Chronus(),
    Pollux(),
    Fifo(),
    FifoBackfill(),
    Sjf(),
    Opportunistic(),
    Afs(),
    LyraGandiva(),
    LyraTuned(),
    LyraPollux(),
)

__all__ = ["BASELINES"]
