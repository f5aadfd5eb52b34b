"""turnwise watch"""

from turnwise.cli.options import command_app

app = command_app("watch", "RUN")


@app.default
def watch(run: str, /) -> None:
    """Show a run's curves in the terminal while it goes on.

    Parameters
    ----------
    run
        A run: its folder, or its name in runs/.
    """
    from turnwise.config.load import find_run
    from turnwise.report.terminal import make_console
    from turnwise.report.watch import watch as watch_run

    watch_run(find_run(run), make_console())
