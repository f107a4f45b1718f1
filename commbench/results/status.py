"""How a cell ended: the values of a record's `status`."""

OK = "ok"
NOT_APPLICABLE = "not_applicable"  # does not exist in this library or on this machine: see reason
REJECTED = "rejected"  # the library refused it
SUBSTITUTED = "substituted"  # another algorithm ran
NOT_MEASURED = "not_measured"  # cut by budget or memory
WRONG = "wrong"  # the answer was wrong: bandwidth withdrawn
TIMEOUT = "timeout"
FAILED = "failed"
STATUSES = frozenset({OK, NOT_APPLICABLE, REJECTED, SUBSTITUTED, NOT_MEASURED, WRONG, TIMEOUT, FAILED})
LASTING = (WRONG, SUBSTITUTED, REJECTED)  # no later visit mends these
FAILURES = (WRONG, SUBSTITUTED, FAILED, TIMEOUT)  # exit 1 (a timeout 124)
