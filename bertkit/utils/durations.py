"""Format durations."""


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days: `45 s`, `12 min`, `3.4 h` or `15 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    hours = minutes / 60
    if hours >= 48:
        return f"{hours / 24:,.0f} days"
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"
