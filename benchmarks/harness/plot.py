"""Lines on two axes as SVG, which follows the reader's light or dark theme."""

import html
import math

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 54, 48
# Colours for a light and a dark ground. Lines also differ in their marks, and are named at their ends.
SERIES = [("#0969da", "#58a6ff"), ("#8250df", "#bc8cff"), ("#1a7f37", "#3fb950"), ("#bc4c00", "#f0883e"),
          ("#bf3989", "#f778ba"), ("#9a6700", "#d29922"), ("#0e7490", "#39c5cf"), ("#cf222e", "#ff7b72"),
          ("#59636e", "#9198a1"), ("#4d2d00", "#c9b08a"), ("#116329", "#7ee787")]
MARKS = "circle square triangle".split()


def lines(title, x_title, y_title, series, x_ticks, y_unit=str):
    """`series` maps names to points; the first is drawn boldest. Both axes are logarithmic; `x_ticks` is a list of
    (place, label)."""
    places = [place for place, _ in x_ticks]
    low = min(y for points in series.values() for _, y in points)
    high = max(y for points in series.values() for _, y in points)
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high * 1.001))

    def x_at(place):
        first, last = math.log(places[0]), math.log(places[-1])
        return LEFT + (math.log(place) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y_at(value):
        return HEIGHT - BOTTOM - (math.log10(value) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    out = [f'<text x="{LEFT}" y="22" class="ink b" font-size="15">{html.escape(title)}</text>']
    for power in range(bottom, top + 1):
        y = y_at(10 ** power)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="soft" font-size="12" text-anchor="end">'
                   f'{html.escape(y_unit(10 ** power))}</text>')
    for place, label in x_ticks:
        out.append(f'<text x="{x_at(place):.1f}" y="{HEIGHT - BOTTOM + 18}" class="soft" font-size="12" '
                   f'text-anchor="middle">{html.escape(label)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" class="soft" font-size="12" '
               f'text-anchor="middle">{html.escape(x_title)}</text>')
    out.append(f'<text x="{LEFT}" y="{TOP - 12}" class="soft" font-size="12">{html.escape(y_title)}</text>')
    ends = labels({name: y_at(points[-1][1]) for name, points in series.items()})
    for number, (name, points) in enumerate(series.items()):
        spots = [(x_at(x), y_at(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        bold = ' style="stroke-width:3"' if number == 0 else ""
        out.append(f'<polyline points="{path}" class="line s{number}"{bold}/>')
        out += [mark(MARKS[number % 3], x, y, number) for x, y in spots]
        x, y = spots[-1]
        label = WIDTH - RIGHT + 14
        out.append(f'<line x1="{x + 5:.1f}" y1="{y:.1f}" x2="{label - 3}" y2="{ends[name] - 4:.1f}" class="lead"/>'
                   f'<text x="{label}" y="{ends[name]:.1f}" class="f{number}{" b" if number == 0 else ""}" '
                   f'font-size="12">{html.escape(name)}</text>')
    return document(title, out, len(series))


def labels(wanted):
    """Heights for labels that do not overlap, near those wanted."""
    placed, last = {}, TOP - 8
    for name, y in sorted(wanted.items(), key=lambda item: item[1]):
        last = placed[name] = max(y + 4, last + 15)
    below = max(0, last - (HEIGHT - BOTTOM + 8))
    return {name: y - below for name, y in placed.items()}


def mark(shape, x, y, number):
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="f{number}"/>'
    if shape == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" class="f{number}"/>'
    return f'<path d="M{x:.1f} {y - 4:.1f}l4 7h-8z" class="f{number}"/>'


def document(title, parts, count):
    def rules(theme, ground, ink, soft, grid):
        hues = [SERIES[n % len(SERIES)][theme] for n in range(count)]
        colours = "".join(f".s{n}{{stroke:{hue}}}.f{n}{{fill:{hue}}}" for n, hue in enumerate(hues))
        return (f".ground{{fill:{ground}}}.ink{{fill:{ink}}}.soft{{fill:{soft}}}.grid,.frame{{stroke:{grid}}}"
                f".lead{{stroke:{grid}}}{colours}")

    style = ("text{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif}.b{font-weight:600}"
             ".line{fill:none;stroke-width:1.8}"
             + rules(0, "#ffffff", "#1f2328", "#59636e", "#d0d7de")
             + f"@media (prefers-color-scheme:dark){{{rules(1, '#0d1117', '#f0f6fc', '#9198a1', '#3d444d')}}}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img"><title>{html.escape(title)}</title><style>{style}</style>\n'
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6" class="ground frame"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
