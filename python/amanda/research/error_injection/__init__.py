"""Error injection: operators run with hardware faults in their values, and campaigns show the effects on results."""

from amanda.research.error_injection.campaign import Campaign, CampaignBy, CampaignRow, Trial, top1_changed
from amanda.research.error_injection.error_injection import ErrorInjection, GroupBy, Row, Side
from amanda.research.error_injection.faults import BitFlip, Fault, RandomValue, StuckAt

__all__ = [
    "BitFlip",
    "Campaign",
    "CampaignBy",
    "CampaignRow",
    "ErrorInjection",
    "Fault",
    "GroupBy",
    "RandomValue",
    "Row",
    "Side",
    "StuckAt",
    "Trial",
    "top1_changed",
]
