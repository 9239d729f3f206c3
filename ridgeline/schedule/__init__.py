"""Stage: schedule. From a kernel and a machine to loop programs, best first."""

from ridgeline.schedule.candidates import candidates, schedule

__all__ = ["candidates", "schedule"]
