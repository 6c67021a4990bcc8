"""Clients that hold different features of the same samples: sensors, patches of images, columns of a table."""

from fedgraph.data.owners.panel import PanelSettings, without_labels
from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.samples import (
    NO_LABEL,
    SAMPLE_SPLITS,
    OwnerData,
    SampleSplit,
    cohort_data,
    held_out,
)
from fedgraph.data.owners.shared_samples import OwnerSource, owner_source, sample_folds

__all__ = [
    "NO_LABEL",
    "SAMPLE_SPLITS",
    "OwnerData",
    "OwnerSource",
    "PanelSettings",
    "Preparation",
    "SampleSplit",
    "cohort_data",
    "held_out",
    "owner_source",
    "sample_folds",
    "without_labels",
]
