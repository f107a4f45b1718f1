"""When Open MPI silently runs another algorithm than the one that was forced.

A release build says nothing, so the conditions are kept here, as they stand in ompi/mca/coll/base/coll_base_<op>.c of
4.1.4 and 5.0.7 (equal in both); each names the function that branches. All reductions here are commutative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from commbench.backends.base import Call


class Situation(NamedTuple):
    """What the branches depend on: the call, `n` ranks, and the segment size in bytes (0: not segmented)."""

    call: Call
    n: int
    segment: int

    @property
    def power(self) -> int:
        """The largest power of two that is not above n."""
        return 1 << (self.n.bit_length() - 1)

    @property
    def segment_count(self) -> int:
        """Elements of one segment, rounded as COLL_BASE_COMPUTED_SEGCOUNT does; all where it is not cut."""
        if not self.call.itemsize <= self.segment < self.call.itemsize * self.call.count:
            return self.call.count
        whole, rest = divmod(self.segment, self.call.itemsize)
        return whole + (rest > self.call.itemsize // 2)


class Rule(NamedTuple):
    """Where `applies`, `runs` is what runs instead, because of `condition`."""

    applies: Callable[[Situation], bool]
    runs: str
    condition: str


_FEWER_THAN_RANKS = "fewer elements than ranks"
_RULES: dict[tuple[str, str], tuple[Rule, ...]] = {
    # ompi_coll_base_allreduce_intra_ring
    ("Allreduce", "ring"): (Rule(lambda s: s.call.count < s.n, "recursive_doubling", _FEWER_THAN_RANKS),),
    # ompi_coll_base_allreduce_intra_ring_segmented
    ("Allreduce", "segmented_ring"): (
        Rule(
            lambda s: s.call.count < s.n * s.segment_count,
            "ring",
            "less than a segment for each rank (a segment is the whole message while "
            "coll_tuned_allreduce_algorithm_segmentsize is 0)",
        ),
    ),
    # ompi_coll_base_allreduce_intra_redscat_allgather
    ("Allreduce", "rabenseifner"): (Rule(lambda s: s.call.count < s.power, "linear", _FEWER_THAN_RANKS),),
    # ompi_coll_base_allgather_intra_recursivedoubling, _neighborexchange, _two_procs
    ("Allgather", "recursive_doubling"): (Rule(lambda s: s.n != s.power, "bruck", "not a power of two of ranks"),),
    ("Allgather", "neighbor"): (Rule(lambda s: s.n % 2 == 1, "ring", "an odd number of ranks"),),
    # ompi_coll_base_bcast_intra_split_bintree, _scatter_allgather, _scatter_allgather_ring
    ("Bcast", "split_binary_tree"): (
        Rule(
            lambda s: s.call.count < 2 or s.segment > s.call.count // 2 * s.call.itemsize,
            "chain",
            "halves shorter than an element or a segment",
        ),
    ),
    ("Bcast", "scatter_allgather"): (Rule(lambda s: s.call.count < s.n, "linear", _FEWER_THAN_RANKS),),
    ("Bcast", "scatter_allgather_ring"): (Rule(lambda s: s.call.count < s.n, "linear", _FEWER_THAN_RANKS),),
    # ompi_coll_base_reduce_intra_redscat_gather
    ("Reduce", "rabenseifner"): (Rule(lambda s: s.call.count < s.power, "linear", _FEWER_THAN_RANKS),),
    # ompi_coll_base_reduce_scatter_block_intra_recursivedoubling
    ("Reduce_scatter_block", "recursive_doubling"): (
        Rule(lambda s: s.n * s.call.count >= 2**31, "linear", "2^31 elements or more in all"),
    ),
}
_TWO_RANKS = "two_proc"


def substitute(call: Call, n: int, segment: int) -> str:
    """Return why Open MPI would not run the algorithm of `call` on `n` ranks, empty if it would."""
    situation = Situation(call, n, segment)
    function, native = call.collective.mpi, call.algorithm.native
    if function == "Alltoall" and call.inplace:
        return f"Open MPI has one all-to-all in place, whatever is forced: {native} would not run"
    if native == _TWO_RANKS and n != 2:
        return f"Open MPI's {native} is for 2 ranks only, not {n}"
    for rule in _RULES.get((function, native), ()):
        if rule.applies(situation):
            return f"Open MPI would run {rule.runs} instead of {native}: {rule.condition}"
    return ""
