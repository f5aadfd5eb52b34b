"""`turnwise doctor`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import INFORMATION, Settings, command_app, merge_settings
from turnwise.config.recording import RecordConfig
from turnwise.core.errors import UserError
from turnwise.run.doctor import Finding, check_machine

USAGE = "[--plan --model NAME [--gpu-memory GIB] | [TASKS] --agent FILE|NAME] [--SECTION.KEY VALUE]..."

doctor_app = command_app("doctor", USAGE)


@doctor_app.default
def doctor(
    tasks: Annotated[str | None, Parameter(name="TASKS")] = None,
    /,
    *,
    agent: Annotated[str | None, Parameter(metavar="FILE|NAME", group=INFORMATION)] = None,
    plan: Annotated[bool, Parameter(group=INFORMATION)] = False,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    shape: Annotated[str | None, Parameter(metavar="NAME")] = None,
    gpu_memory: Annotated[float | None, Parameter(metavar="GIB")] = None,
    overrides: Settings = (),
) -> None:
    """Check this machine, or an agent.

    Parameters
    ----------
    tasks
        Tasks of a command-line agent, harbor:FOLDER. Default: a task of one command.
    agent
        Settings file with an agent, or a command-line agent such as mini-swe: run one episode of it, in place of the
        checks, and print what was captured.
    plan
        Print how training a model would use GPU memory, in place of the checks.
    model
        Hugging Face name or folder of the model to plan for; its weights are not loaded.
    shape
        Built-in model shape to plan for, such as qwen2.5-1.5b, in place of --model.
    gpu_memory
        GPU memory in GiB to plan for. Default: the memory of this machine's GPU.
    """
    of_plan = model is not None or shape is not None or gpu_memory is not None
    if plan:
        print_plan(model, shape, gpu_memory, merge_settings(overrides))
        return
    if agent is not None and not of_plan:
        _print_agent(agent, merge_settings(overrides), tasks)
        return
    if tasks is not None:
        raise UserError(f"{tasks} has an effect only beside --agent, a command-line agent such as mini-swe. Add it.")
    if of_plan or overrides:
        raise UserError("A model, a GPU size and settings apply only to a memory plan: add --plan.")
    findings = check_machine(Path(RecordConfig().folder))
    _print_findings(findings)
    broken = [finding.name for finding in findings if finding.fix and finding.required]
    if broken:
        raise UserError(f"This machine is not ready; fix first: {', '.join(broken)}")


def _print_agent(agent: str, overrides: list[tuple[str, str]], tasks: str | None) -> None:
    from turnwise.envs.agent.choices import is_command_line_agent

    if not is_command_line_agent(agent):
        if tasks is not None:
            raise UserError(f"{tasks} has no effect beside a settings file, which names its own tasks. Remove it.")
        from turnwise.run.configure import configure

        configure(agent, overrides=overrides)  # reports wrong settings before torch is imported
    from turnwise.run.doctor_agent import check_agent

    _print_findings(check_agent(agent, overrides, tasks))


def _print_findings(findings: Sequence[Finding]) -> None:
    print_table(("check", "found", "fix"), [(finding.name, finding.found, finding.fix) for finding in findings])


def print_plan(
    model: str | None, shape: str | None, gpu_memory: float | None, overrides: list[tuple[str, str]]
) -> None:
    from turnwise.run.memory_report import HEADERS, report_plan

    report = report_plan(model, shape, gpu_memory, overrides)
    print_table(HEADERS, report.rows)
    print_line()
    for line in report.lines:
        print_line(line)
