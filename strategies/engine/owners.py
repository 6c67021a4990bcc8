"""Base class of strategies over owners of different features: one exchange for the samples, and no models are sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.defence import bounded_embeddings
from fedgraph.federation import JoinedSamples, join
from fedgraph.fusion import FusionEpoch, FusionSettings
from fedgraph.messages import EmbedReply, EmbedRequest
from fedgraph.strategies.engine.phases import Outcome, PhasedStrategy
from fedgraph.support.files import json_digest, load_state, save_state
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")

_LOGGED_EPOCHS = 50


class OwnersStrategy(PhasedStrategy[S]):
    """Base class of strategies that ask all owners once for their part of the shared samples.

    A method overrides ``execute``, and ``check`` where its settings may not fit each other.
    """

    needs = "clients that hold different features of the same samples, such as metr-la-rush-hour"
    paper = "https://proceedings.mlr.press/v216/ma23b.html"
    default_client = "fedgraph.clients.f3:F3Client"

    def samples(
        self,
        grid: Grid,
        splits: tuple[str, ...] = ("train", "validation", "test"),
        embeddings: bool = True,
        owners: Iterable[str] | None = None,
        fingerprints: Mapping[str, str] | None = None,
    ) -> JoinedSamples:
        """Return what all owners have of the shared samples.

        Takes one exchange, and none when a stopped run had it already. An experiment that was changed before the run
        continues needs it again only if the change affects the embeddings.

        Parameters
        ----------
        grid : Grid
            Grid that connects to the nodes.
        splits, embeddings, fingerprints
            See :class:`fedgraph.messages.EmbedRequest`.
        owners : iterable of str, optional
            Owners that get a column, whether they answer or not; by default those that answer.
        """
        plan, kept = self.plan, self.plan.folder.checkpoint
        request = EmbedRequest(
            splits, embeddings, dict(fingerprints or {}),
            client=plan.client, experiment=plan.experiment, run=plan.folder.name,
        )  # fmt: skip
        asked = _digest(request)
        if kept.exists() and embeddings:
            saved = load_state(kept)
            self.count_on(saved)
            if saved.get("asked") == asked:
                return self._bounded(JoinedSamples.of_state(saved["samples"]))
            log.info("the experiment was changed since owners were asked for embeddings: they are asked again")
        answers = self.ask(grid, request.pack(), EmbedRequest.message_type, EmbedReply.unpack)
        joined = join(answers, None if owners is None else tuple(owners), plan.tolerant, embeddings)
        self.check_owners_present(joined)
        log.info(
            "%d owners on %d nodes, %d samples; data: %s",
            len(joined.owners), len(joined.hosts), len(joined.keys), joined.data,
        )  # fmt: skip
        if embeddings:
            save_state(kept, {"asked": asked, "samples": joined.state(), **self.counters()})
        return self._bounded(joined)

    def _bounded(self, joined: JoinedSamples) -> JoinedSamples:
        """Bound what single owners can do, as [defence] says."""
        times = self.plan.defence.clip
        if not times or not joined.embeddings.shape[2]:
            return joined
        return replace(joined, embeddings=bounded_embeddings(joined.embeddings, joined.present, times))

    def check_owners_present(self, joined: JoinedSamples) -> None:
        """Log missing owners and check that enough are left, see :meth:`check_present`."""
        self.check_present(joined.absent, sum(map(len, joined.hosts.values())), "owner")

    def record_epoch(self, epoch: FusionEpoch) -> None:
        """Write a line to ``metrics.jsonl``, advance the progress bar, and log every 50th epoch."""
        self.plan.folder.append(
            {
                "round": epoch.epoch,
                "phase": "fusion",
                "learning_rate": epoch.learning_rate,
                "training_loss": epoch.training_loss,
                "validation_loss": epoch.validation_loss,
            }
        )
        for listener in self.plan.listeners:
            listener.on_epoch("fusion", epoch.epoch)
        if epoch.epoch % _LOGGED_EPOCHS == 0:
            log.info(
                "fusion at the learning rate %g, epoch %d: training loss %.4f, validation loss %.4f",
                epoch.learning_rate, epoch.epoch, epoch.training_loss, epoch.validation_loss,
            )  # fmt: skip


def outcome_of(
    joined: JoinedSamples, metrics: Mapping[str, Tensor], parameters: Tensor, rounds: int, facts: Mapping[str, Any]
) -> Outcome:
    """Return the outcome of a run over owners."""
    measured = (
        f"{len(joined.owners)} owners, one prediction per sample from all of them together; what ends with -local is "
        "measured of the owners' own models"
    )
    task = joined.federation().task
    return Outcome(joined.owners, joined.data, measured, metrics, parameters, rounds, joined.absent, facts, task)


def _digest(request: EmbedRequest) -> str:
    """Return a digest of everything that embeddings depend on, without the server's settings for fusion."""
    tables = json.loads(request.experiment)
    fusion = {*FusionSettings.keys(), "vote"}
    tables["method"] = {key: value for key, value in tables["method"].items() if key not in fusion}
    return json_digest([request.client, tables, request.splits, dict(request.fingerprints)])
