"""turnwise doctor"""

from pathlib import Path

from turnwise.cli.options import command_app
from turnwise.cli.show import table
from turnwise.config.schema import RecordConfig
from turnwise.core.errors import UserError
from turnwise.recipes.doctor import examine

app = command_app("doctor", "")


@app.default
def doctor() -> None:
    """Check this machine."""
    findings = examine(Path(RecordConfig().folder))
    table(("what", "found", "mend"), [(finding.name, finding.found, finding.mend) for finding in findings])
    broken = [finding.name for finding in findings if finding.mend and finding.needed]
    if broken:
        raise UserError(f"not ready, mend first: {', '.join(broken)}")
