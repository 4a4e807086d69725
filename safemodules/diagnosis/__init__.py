"""Name the line that overwrote a tensor, the line that saved it, and the mend."""

from safemodules.diagnosis.diagnose import diagnose
from safemodules.diagnosis.findings import Clash, Diagnosis, SiteReport
from safemodules.diagnosis.watching import watch

__all__ = ["Clash", "Diagnosis", "SiteReport", "diagnose", "watch"]
