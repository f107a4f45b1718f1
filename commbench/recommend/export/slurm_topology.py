"""Slurm's topology.conf, and topology.yaml where its version reads that: for administrators to look at and install."""

from __future__ import annotations

from commbench.errors import UsageError
from commbench.recommend.export._settings import NotExported, Settings
from commbench.recommend.export.slurm import deny_blocks
from commbench.recommend.plan import Plan
from commbench.topology.writers import slurm_conf, slurm_yaml

TITLE = "Slurm topology"
CONF, YAML = "topology.conf", "topology.yaml"
YAML_SINCE = (25, 5)


def files(plan: Plan, settings: Settings) -> dict[str, str]:
    """Return the files that this version reads; both where it is not known. Slurm takes the YAML where it has both.

    Raises NotExported where Slurm cannot be told of the cluster.
    """
    if settings.cluster is None:
        raise NotExported("no topology.conf: it is made of a cluster, and none was given")
    deny_blocks(settings)
    try:
        made = {CONF: slurm_conf.write(settings.cluster, settings.plugin)}
        if settings.slurm is None or settings.slurm >= YAML_SINCE:
            made[YAML] = slurm_yaml.write(settings.cluster, kind=settings.plugin)
    except UsageError as error:
        raise NotExported(f"no topology.conf: {error}") from None
    return made
