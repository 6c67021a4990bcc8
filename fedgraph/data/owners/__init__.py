"""Clients that hold different features of the same samples: sensors, patches of images, columns of a table."""

from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.samples import (
    NO_LABEL,
    SAMPLE_SPLITS,
    OwnerData,
    OwnerSource,
    SampleSplit,
    cohort_data,
    held_out,
    owner_source,
)
from fedgraph.data.owners.shared_samples import sample_folds

__all__ = [
    "NO_LABEL",
    "SAMPLE_SPLITS",
    "OwnerData",
    "OwnerSource",
    "Preparation",
    "SampleSplit",
    "cohort_data",
    "held_out",
    "owner_source",
    "sample_folds",
]
