"""Actions in progress: they belong to the app, so that leaving a screen does not end them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from textual.app import App
from textual.worker import Worker

from dflash_backend.control.contract import Outcome, Plan, Step
from dflash_backend.core.errors import ConsoleError
from dflash_console.tui.services import BenchState, Services

_log = logging.getLogger("dflash_console.tui")


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One action from its plan to its outcome."""

    plan: Plan
    started_at: float
    steps: dict[str, Step] = field(default_factory=dict)
    """By name, in the order of their first appearance."""
    outcome: Outcome | None = None
    finished_at: float | None = None
    worker: Worker[None] | None = None

    @property
    def running(self) -> bool:
        """True until there is an outcome."""
        return self.outcome is None

    def words(self) -> str:
        """The action in words: ``apply kimi-ddtree16``."""
        name = str(self.plan.action)
        return f"{name} {self.plan.profile.name}" if name in ("apply", "start") else name

    def add(self, step: Step) -> None:
        """One more report. Steps follow one another: what still ran has ended, as the new one says."""
        for name, earlier in self.steps.items():
            if earlier.state == "running" and name != step.name:
                self.steps[name] = replace(earlier, state="failed" if step.state == "failed" else "done")
        self.steps[step.name] = step

    def where(self) -> str:
        """The step that runs now, in words."""
        for step in self.steps.values():
            if step.state == "running":
                return f"{step.name} {step.text}".strip()
        return "not begun"


class Jobs:
    """Starts, keeps and cancels actions; at most one for each server."""

    def __init__(self, app: App[int], services: Services, changed: Callable[[Job], None]) -> None:
        self._app = app
        self._services = services
        self._changed = changed
        self._jobs: dict[str, Job] = {}

    def of(self, server: str) -> Job | None:
        """The newest action of a server, finished or not."""
        return self._jobs.get(server)

    def busy(self, server: str) -> str:
        """What is in progress on a server, in words; empty when nothing is."""
        job = self._jobs.get(server)
        return job.words() if job and job.running else ""

    def running(self) -> list[Job]:
        """All actions in progress."""
        return [job for job in self._jobs.values() if job.running]

    def start(self, plan: Plan) -> Job:
        """Runs a plan in the background."""
        job = Job(plan=plan, started_at=self._services.clock())
        self._jobs[plan.server] = job
        job.worker = self._app.run_worker(
            self._run(job), name=job.words(), group=f"action-{plan.server}", exit_on_error=False
        )
        return job

    def cancel(self, job: Job) -> None:
        """Asks an action to end; its outcome says what it left."""
        if job.worker is not None and job.running:
            job.worker.cancel()

    async def _run(self, job: Job) -> None:
        try:
            async for item in self._services.operator.execute(job.plan):
                if isinstance(item, Outcome):
                    job.outcome = item
                else:
                    job.add(item)
                    self._changed(job)
            if job.outcome is None:
                job.outcome = Outcome(ok=False, summary="ended without saying how", exit_code=5)
        except asyncio.CancelledError:
            job.outcome = Outcome(
                ok=False,
                summary=f"cancelled during: {job.where()}",
                exit_code=130,
                details=("What runs on the host goes on; the fleet screen shows what it is.",),
            )
            raise
        except ConsoleError as error:
            job.outcome = Outcome(
                ok=False, summary=error.lines()[0], exit_code=error.exit_code, details=error.lines()[1:]
            )
        except Exception as error:
            _log.exception("action %s failed inside", job.words())
            job.outcome = Outcome(
                ok=False,
                summary=f"internal error ({type(error).__name__}); the console's log has the details",
                exit_code=5,
            )
        finally:
            job.finished_at = self._services.clock()
            self._changed(job)


class BenchTask:
    """The benchmark that runs now, if one does; one at a time."""

    def __init__(self, app: App[int], services: Services, changed: Callable[[], None]) -> None:
        self._app = app
        self._services = services
        self._changed = changed
        self._worker: Worker[None] | None = None
        self.state: BenchState | None = None
        self.error = ""

    @property
    def running(self) -> bool:
        """True while requests may be in flight."""
        return self._worker is not None and not self._worker.is_finished

    def start(self, job: str, server: str) -> None:
        """Runs a job in the background."""
        self.state, self.error = None, ""
        self._worker = self._app.run_worker(
            self._run(job, server), name=f"bench {job}", group="bench", exit_on_error=False
        )

    def stop(self) -> None:
        """Stops the run; finished cells are kept by the runner."""
        if self._worker is not None:
            self._worker.cancel()

    async def _run(self, job: str, server: str) -> None:
        assert self._services.bench is not None
        try:
            async for state in self._services.bench.run(job, server):
                self.state = state
                self._changed()
        except asyncio.CancelledError:
            self.error = "stopped; finished cells are kept"
            raise
        except ConsoleError as error:
            self.error = " · ".join(error.lines())
        except Exception as error:
            _log.exception("benchmark %s failed inside", job)
            self.error = f"internal error ({type(error).__name__}); the console's log has the details"
        finally:
            self._changed()
