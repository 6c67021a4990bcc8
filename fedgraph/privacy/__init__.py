"""Protection of embeddings, updates, counts and sums by noise, masks and shares, and the limits of each.

Nothing here is enabled by default: without it the server receives every embedding of F3 (Ma, Hoang, Chen; UAI 2023),
and every peer's parameters in IPA.

**Noise on embeddings** (``gaussian``). An owner clips each embedding and adds Gaussian noise before it leaves.

- Protects: one owner's embedding of one sample, against all observers, including the server, with any prior knowledge:
  it is nearly indistinguishable from any other embedding. (epsilon, delta) quantifies this, for a number of releases of
  the same sample.
- Price: noise costs accuracy, and a small epsilon needs noise many times larger than the embedding.
- The unit is one sample of one owner. The same sample is seen by all owners: for the person or the hour behind it the
  loss over all owners together is larger, and ``privacy_loss(..., owners=n)`` returns it. Correlated samples (readings
  of neighbouring hours, visits of one patient) multiply the loss in the same way.
- A node knows an owner's samples by their content and counts over all runs, models and settings of noise
  (:class:`Ledger`): what was sent is sent again as it was, and a release beyond ``releases``, or beyond ``[agreement]
  epsilon`` of the site, is refused, whatever keys the server gives. Owners are told apart by name, as in the
  experiments that their site has agreed to, and a row that its site has changed is another one.
- The local model is taken as fixed. What the weights memorise of training samples also shows in the embeddings of other
  samples, and is not covered; only private training of the local model would cover it. Samples on which it was neither
  trained nor selected are covered completely.
- Does not hide labels, sample keys, which owner lacks which sample, nor local predictions that were not made from the
  noisy embedding: a prediction made from the clean one discloses something of the clean one.
- The guarantee is that of real numbers. Drawn with floating-point numbers, low bits may disclose more (Mironov 2012);
  rounding to a grid removes those bits, which makes such an attack hard but is not a proof.

**Noise on updates** (``gaussian``; ``[ipa] privacy``). A peer clips all changes of its turn, in its own parameters and
in updated ones of others, as one vector, and adds Gaussian noise before it leaves.

- Protects: all data of one peer, against the server and the other peers, who can hardly distinguish them from any other
  data of the same size. (epsilon, delta) adds up over its turns, in all runs.
- Price: every single parameter gets noise. An epsilon of common size leaves nothing of an update of 200,000 parameters.
- Participation, numbers of examples and settings are not hidden. Metrics are of shared data; a node refuses others,
  and numbers of labels for a client graph, and moments of readings for common scales. Training losses, divergence and
  the moments of the optimiser stay on the node.
- A node counts the releases of a client over all runs (:class:`Ledger`), up to the least that was promised, or to
  ``[agreement] epsilon`` of the site; a name of a run is no new budget. Clients are counted by name, as in the
  experiments that their site has agreed to.

**Counts** (``counts``). A client adds noise to counts of its rows: of categories, or of a histogram that quantiles are
then read from.

- Protects: one row, against all observers: with another row in its place, the release looks nearly the same.
- The loss of a person with several rows is multiplied by their number, and each release with fresh noise adds its own.
  Columns do not add to it: the noise grows with their number. A node adds up what it has disclosed of each row, in all
  runs (:class:`Ledger`), and refuses more than the least that was promised. FedNGM's graphs and parameters leave
  without noise, so that a site with ``[agreement] epsilon`` does not take part.
- Without noise, a node sends one kind of statistics of the same rows: others (at another quantile, of other columns, of
  cells that are read otherwise) are refused, and sums or ranges of other rows where all that were sent tell fewer than
  ``[agreement] least-rows`` rows apart, and sums with ranges that leave fewer rows on one side.
  What such statistics say themselves is not hidden: a quantile may be a person's
  value, and a sum over a rare category that of the few who have it.
- Does not hide the number of rows, the names of columns, nor the categories themselves.

**Sums** (``masks``; ``[fedngm.recovery] masks``). Clients add masks to integers that cancel in the sum (Bonawitz et al.
2017), so the server learns only the sum over all of them.

- Protects: one client's numbers, against an honest server, and against fewer than all the others.
- Does not protect: against all others together, who can subtract their own numbers from the sum; of two clients each
  can, if it gets the sum. What the sum itself discloses is not hidden: noise does that, and each client adds its own.
- The server distributes the public keys. A server that invents clients can remove the masks of the others.
- Keys are used once. When a client is lost, the others begin again with new ones; a server that says so of a client
  whose sums it has learns them as the difference of both sums.

**Shares** (``shamir``, ``sealed``). An owner splits a quantised embedding into n shares for n aggregators.

- Protects: fewer than k aggregators learn nothing of an embedding, with any computation (Shamir 1979).
- Does not protect: k aggregators that combine their shares see every embedding. Aggregators are assumed to follow the
  protocol and not to collude (honest but curious). More than k replies reveal a wrong share, exactly k do not.
- Shares travel through the server, sealed for the aggregator that may see them (HPKE, RFC 9180). The server also
  distributes the aggregators' public keys: a server that replaces them can read the shares. Owners that receive the
  fingerprints by another channel (``fingerprint``) can pin them, which prevents this. A seal does not authenticate the
  sender.
- Labels, sample keys, which owner lacks which sample and the sizes of embeddings are not hidden.
- n, k and the bits are those of the agreed experiment; a node requires k different aggregators, two at least, and only
  those that it has pinned.

**First stage on shares** (``first_stage``). At inference, alignment, first layer weight and the first graph product are
computed by the aggregators on shares; the server gets the outcome only, adds bias and non-linearity and continues.

- Protects: no aggregator alone sees an embedding or any outcome, and the server sees no embedding.
- The server learns the outcome exactly: of a sample ``Y_i = sum_j S_ij W' P_j h_j`` for every owner i and graph draw.
  A_hat + I can nearly always be inverted, so that is ``hidden`` numbers per owner and sample (``W' P_i h_i``: 8 of 16
  numbers in the paper's sizes), for one graph draw as for many: draws share the projection. Another trained model adds
  ``hidden`` numbers more. Every aggregator records which projections it has applied to which samples (in its node's
  ``state-dir``) and refuses, by ``check_leaks``, when an owner's whole embedding would be determined. It knows samples
  by tags that their owner seals with its shares and that follow from their content, not by keys.
- Exact whole numbers disclose more than rounded ones: ``hidden`` exact equations may have a single solution in bounded
  whole numbers. So an embedding gets random low bits before it is split, and too few of them are refused. They are
  drawn once per sample and model and kept by the owner's node, as fresh ones for every request, or for other bits,
  would average out: an embedding is shared at one precision.
- Undetermined numbers may still be estimated: embeddings are correlated, and a server that has seen training
  embeddings can estimate the rest of a new one from the numbers that it learns.
- Training the fusion model still needs unshared embeddings, with noise or without. Shares protect new samples only,
  and only at nodes that have agreed to ``f3-secret``: ``f3-inference`` asks for the embeddings themselves.

**Inference on shares** (the method ``f3-secret``) combines these in three exchanges: which owners have which samples,
without any embedding; sealed shares from the owners; shares of the outcome from the aggregators.

- k of the n aggregators must answer, or there is no prediction. With ``on-missing = "skip"`` the others may be
  unavailable; by default a run stops if one is missing. A wrong answer stops the run, or is left out if k + 2 answer
  and the others agree (``on-missing = "skip"``). When exactly k answer, it spoils the predictions unnoticed.
- A share opens only for the samples, model, settings and request for which the owner has sealed it: the server cannot
  replace one sample's share by another's.
- Predictions differ from those without shares by rounding: ``probability_error_bound`` of ``summary.json`` is the
  largest error for any embedding up to ``largest``, as a rule some hundred times the actual one.
- ``simulated-aggregators``, and thus ``fedgraph predict --secret``, are for tests: nodes of owners act as the
  aggregators (after a run over sites, nodes without data in the same process), whose keys and records are in the run
  folder. k such nodes of one institution give no protection.

An aggregator is a node that needs neither clients nor data; it is best run by an institution without an interest in
the owners' data. Each prints its fingerprint and starts::

    python -m fedgraph.privacy.secret /var/lib/fedgraph east
    fedgraph node secret.toml --root-certificates ca.crt --superlink server.example:8000 \\
        --private-key east --state-dir /var/lib/fedgraph --config aggregator=east

and likewise ``north`` and ``west``, on separate machines. The operators of nodes with owners obtain the three
fingerprints, by telephone rather than through the server, and pin them::

    fedgraph node secret.toml --root-certificates ca.crt --superlink server.example:8000 \\
        --private-key mercy --client mercy \\
        --config aggregator-fingerprints=east=0f3a...,north=...,west=...

The experiment, ``secret.toml``, has ``method = "f3-secret"`` and ``[f3-secret] run = "..."``, ``aggregators = 3``,
``threshold = 2``.
Back up ``state-dir``: without an aggregator's records, leaks of earlier requests are not considered, and without its
key owners refuse it.
"""

from fedgraph.privacy.ledger import ONCE, Budget, Ledger, kept_secret

__all__ = ["ONCE", "Budget", "Ledger", "kept_secret"]
