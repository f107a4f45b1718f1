"""Settings that change what a communication library does: variables, NCCL's files, plugins.

Order of NCCL's files (src/misc/param.cc): the environment, then NCCL_CONF_FILE or else ~/.nccl.conf, then
/etc/nccl.conf; what was set first stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from commbench.diagnose.system import BROKEN, FORCED, Check, Finding, System
from commbench.results import manifest

HIDDEN = "(not shown)"
# Settings by which a user has chosen an algorithm, beside and before --algo.
_FORCING = re.compile(
    r"NCCL_ALGO|NCCL_PROTO|NCCL_SYM_KERNEL|RCCL_OVERRIDE_\w+|MPIR_CVAR_\w+_(INTRA|INTER)_ALGORITHM"
    r"|OMPI_MCA_coll_tuned_\w+_algorithm|OMPI_MCA_coll_tuned_dynamic_rules_filename|I_MPI_ADJUST_\w+"
)
_PLUGINS = ("NCCL_TUNER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN")
_CHOOSING = ("TUNER", "ENV")  # change the choice of an algorithm, or any setting
_OFF = ("", "none")


def variables(system: System) -> Check:
    """The environment's settings, by the manifest's allow-list."""
    there = manifest.environment(system.environment)
    return Check(_words(there) or "none is set", facts=there, findings=_forced(there, "the environment"))


def nccl_files(system: System) -> Check:
    """NCCL's own files: read once by the library, so that what they set need not show in the environment."""
    facts, texts, findings = {}, [], []
    named = system.environment.get("NCCL_CONF_FILE", "")
    home = system.environment.get("HOME", "")
    own = system.path(f"{home}/.nccl.conf") if home else ""
    for path in filter(None, (named or own, system.path("/etc/nccl.conf"))):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                settings = read_settings(file.read())
        except FileNotFoundError:
            if path == named:
                remedy = "mend or unset NCCL_CONF_FILE"
                findings.append(Finding(BROKEN, "the file that NCCL_CONF_FILE names is there", path, remedy))
            continue
        except OSError as error:
            remedy = "make it readable, or remove it"
            findings.append(Finding(BROKEN, "NCCL's files can be read", f"{path}: {error.strerror}", remedy))
            continue
        facts[path] = settings
        texts.append(f"{path}: {_words(settings) or 'sets nothing'}")
        # The environment comes before the files.
        findings += _forced({k: v for k, v in settings.items() if k not in system.environment}, path)
    return Check("; ".join(texts) or "none", facts=facts, findings=tuple(findings))


def read_settings(text: str) -> dict[str, str]:
    """Return the lines NAME=VALUE of an nccl.conf without its comments; values of secrets are not shown."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            found.setdefault(name.strip(), HIDDEN if manifest.is_secret(name) else value.strip())
    return found


def plugins(system: System) -> Check:
    """Plugins of NCCL, asked for or found unasked: a tuner changes which algorithm runs, an env plugin any setting.

    The library tries libnccl-tuner.so, libnccl-env.so, ... where no variable names another (src/plugin/plugin_open.cc).
    """
    there = {name: value for name in _PLUGINS if (value := system.environment.get(name, "")).lower() not in _OFF}
    lying = {name: file for name, file in system.child("nccl_plugins").items() if name.endswith(".so")}
    findings = []
    for kind in _CHOOSING:
        variable, file = f"NCCL_{kind}_PLUGIN", lying.get(f"libnccl-{kind.lower()}.so", "")
        value = f"{variable}={there[variable]}" if variable in there else file
        if value and system.environment.get(variable) != "none":
            rule = "no plugin changes which algorithm NCCL chooses"
            findings.append(Finding(FORCED, rule, value, f"set {variable}=none, or name the plugin beside the results"))
    text = "; ".join(filter(None, (_words(there), ", ".join(lying.values()))))
    return Check(text or "none", facts={"asked": there, "found": lying}, findings=tuple(findings))


def _forced(settings: dict[str, str], where: str) -> tuple[Finding, ...]:
    """Return a finding for each setting that forces an algorithm."""
    return tuple(
        Finding(
            FORCED,
            "commbench chooses the algorithms: a setting that forces one comes before --algo",
            f"{name}={value} in {where}",
            f"unset {name}" if where == "the environment" else f"take {name} out of {where}",
        )
        for name, value in settings.items()
        if _FORCING.fullmatch(name) and value not in ("", "0", "auto")
    )


def _words(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


CHECKS: dict[str, Callable[[System], Check]] = {
    "variables": variables,
    "nccl.conf": nccl_files,
    "plugins": plugins,
}
