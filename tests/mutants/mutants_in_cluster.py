"""Mutants of turnwise.cluster: placement, weights, losses, predictions, and what watches Ray itself."""

from mutant_for_tests import mutants

IN_CLUSTER = (
    *mutants(
        "cluster/placement.py",
        ("cluster/test_cluster_placement.py",),
        ("small actors take the room of large ones", "reverse=True", "reverse=False"),
        ("a colocated pair asks for two machines", "0.5 if index < shared else 1.0", "1.0"),
        (
            "environment workers take the place of engines",
            "range(first, first + settings.env_workers)",
            "range(settings.env_workers)",
        ),
        ("GPUs are asked for where there are none", "float(gpus_per_engine > 0)", "1.0"),
    ),
    *mutants(
        "cluster/weights.py",
        ("cluster/test_published_weights.py",),
        ("frozen weights are sent with every version", "if self._frozen is None or not all(", "if True or not all("),
        ("frozen weights are missing", "chain(self.frozen.named_parameters(), ", "chain("),
    ),
    *mutants(
        "cluster/actor_pool.py",
        ("cluster/test_memory_losses.py",),
        (
            "an actor without memory ends the run",
            "    except LOSSES as error:\n        raise ActorLost",
            "    except ZeroDivisionError as error:\n        raise ActorLost",
        ),
    ),
    *mutants(
        "cluster/hang_watch.py",
        ("cluster/test_hangs.py",),
        (
            "silence while this process was stopped counts",
            "min(time.monotonic() - before, 2 * self._period_s)",
            "3600.0",
        ),
    ),
    *mutants(
        "cluster/deadlines.py",
        ("cluster/test_hangs.py",),
        ("a deadline ignores slow calls", "FACTOR * max(earlier)", "FACTOR * min(earlier)"),
        ("an expired deadline stays as it is", "        self._expired[name] += 1\n", ""),
    ),
    *mutants(
        "cluster/session.py",
        ("cluster/test_memory_losses.py",),
        (
            "a process without memory is not a loss",
            "LOSSES = (RayActorError, OutOfMemoryError)",
            "LOSSES = (RayActorError,)",
        ),
    ),
    *mutants(
        "cluster/simulate.py",
        ("cluster/test_simulate.py",),
        ("a step more than the staleness bound starts", "<= self.version + self", "<= self.version + 1 + self"),
        ("one turn has the rate of all", "engine.total(running) / running for", "engine.total(running) for"),
        (
            "engines sample during the transfer",
            "        self._pause(True)\n        self._after(self.learner.transfer_s",
            "        self._after(self.learner.transfer_s",
        ),
        ("later steps go first", "(episode.step, self._arrivals, episode)", "(-episode.step, self._arrivals, episode)"),
    ),
    *mutants(
        "cluster/gpu_memory.py",
        ("run/test_cluster_plan.py",),
        ("every rank holds everything", "share = math.ceil(size / ranks)", "share = size"),
        (
            "the KV cache of a replica is whole on each GPU",
            "estimate.kv_cache(request.page_size) / tensor_parallel",
            "estimate.kv_cache(request.page_size)",
        ),
    ),
    *mutants(
        "cluster/ray_guard.py",
        ("cluster/test_ray_guard.py",),
        ("a restart of the GCS is a loss", "driver_ended or time.monotonic() - self._answered > PATIENCE_S", "True"),
        ("the cluster that ended its driver is not a loss", "return driver_ended or time", "return time"),
        ("a driver that ended is Ray's loss", "return self.descriptor in ready", "return bool(ready)"),
    ),
    *mutants(
        "cluster/local_ray.py",
        ("cluster/test_ray_guard.py",),
        ("a slow start is not repeated", "if SLOW_START not in str(error):", "if True:"),
        ("a slow start leaves its processes", "            os.kill(pid, signal.SIGKILL)", "            pass"),
        (
            "earlier processes end with a slow start",
            "_find_children().keys() - before.keys()",
            "_find_children().keys()",
        ),
        ("folders of killed drivers stay", "    remove_abandoned_bases(FOLDER, parent)\n", ""),
        ("an ended process is watched", 'None if state == "Z" else int(parent)', "int(parent)"),
    ),
    *mutants(
        "cluster/env_messages.py",
        ("cluster/test_env_messages.py",),
        ("messages of other versions are read", "    version: Literal[1] = VERSION", "    version: int = VERSION"),
        ("images are sent as text", 'ser_json_bytes="base64"', 'ser_json_bytes="utf8"'),
        ("a subclass of an error loses its type", "in type(error).__mro__ if", "in type(error).__mro__[1:] if"),
        ("users' errors pass as ours", 'type(error).__module__.startswith("turnwise.")', "True"),
        (
            "the seconds of the environment are lost",
            "seconds=seconds).encode()\n    except",
            "seconds=0.0).encode()\n    except",
        ),
    ),
)
