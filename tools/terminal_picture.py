"""Draws what a program shows on a terminal, as SVG, and as PNG where there is matplotlib.

    terminal_picture.py [--columns=N] [--rows=N] FILE.svg|FILE.png... -- COMMAND...

The command runs in a terminal of its own until it ends; the picture is of its last moment before it
cleared the screen or left its own one.
"""
import argparse
import codecs
import fcntl
import html
import os
import pty
import re
import struct
import sys
import termios

PAPER, INK = "#14171c", "#d8dee9"
# Of SGR 30..37 and 90..97.
COLORS = ["#3b4252", "#bf616a", "#a3be8c", "#ebcb8b", "#81a1c1", "#b48ead", "#88c0d0", "#e5e9f0"]
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.4, 18, 14
FONT = "DejaVu Sans Mono"
_SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b[()].|\x1b[=>78]")


class Screen:
    """A terminal: the few sequences that programs need which redraw a page of text."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self._style = (INK, False)
        self.clear()
        self.last_page = None  # what was there before it was cleared

    def clear(self):
        self.cells = [[(" ", (INK, False))] * self.columns for _ in range(self.rows)]
        self._row = self._column = 0

    def feed(self, text):
        """Takes text. What is left of it: a sequence that has not ended."""
        position = 0
        while position < len(text):
            if text[position] == "\x1b":
                match = _SEQUENCE.match(text, position)
                if not match:
                    if len(text) - position < 32:
                        return text[position:]
                    position += 1
                    continue
                self._obey(match.group(1) or "", match.group(2))
                position = match.end()
            else:
                self._put(text[position])
                position += 1
        return ""

    def lines(self):
        return ["".join(character for character, _ in row).rstrip() for row in self.cells]

    def _put(self, character):
        if character == "\n":
            self._row += 1
            if self._row >= self.rows:
                self.cells = self.cells[1:] + [[(" ", (INK, False))] * self.columns]
                self._row = self.rows - 1
        elif character == "\r":
            self._column = 0
        elif character >= " " and self._column < self.columns:
            self.cells[self._row][self._column] = (character, self._style)
            self._column += 1

    def _obey(self, arguments, letter):
        numbers = [int(n) if n else 0 for n in arguments.lstrip("?").split(";")]
        if letter == "H":
            self._row = min(max(numbers[0], 1), self.rows) - 1
            self._column = min(max(numbers[-1] if len(numbers) > 1 else 1, 1), self.columns) - 1
        elif letter == "K":
            self._blank(self._row, self._column)
        elif letter == "J":
            if numbers[0] == 2:
                self._keep_page()
                self.clear()
            else:
                self._blank(self._row, self._column)
                for row in range(self._row + 1, self.rows):
                    self._blank(row, 0)
        elif letter == "m":
            for number in numbers:
                self._set_style(number)
        elif letter == "l" and arguments == "?1049":
            self._keep_page()

    def _keep_page(self):
        if any(self.lines()):
            self.last_page = [list(row) for row in self.cells]

    def _blank(self, row, column):
        self.cells[row][column:] = [(" ", (INK, False))] * (self.columns - column)

    def _set_style(self, number):
        color, bold = self._style
        if number == 0:
            self._style = (INK, False)
        elif number == 1:
            self._style = (color, True)
        elif number in (2, 39, 22):
            self._style = ("#7b8494" if number == 2 else INK, bold and number != 22)
        elif 30 <= number <= 37 or 90 <= number <= 97:
            self._style = (COLORS[number % 10], bold)

    def page(self):
        """The cells to draw, without empty lines at the end."""
        cells = self.last_page or self.cells
        used = [i for i, row in enumerate(cells) if any(c != " " for c, _ in row)]
        return cells[:used[-1] + 1 if used else 1]


def record(command, columns, rows):
    """The screen when the command has ended, and its exit code."""
    screen = Screen(columns, rows)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    rest = ""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end is gone
            data = b""
        if not data:
            break
        rest = screen.feed(rest + decode(data))
    os.close(terminal)
    return screen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def runs(row):
    """[(column, text, style)] of pieces of one style."""
    pieces = []
    for column, (character, style) in enumerate(row):
        if pieces and pieces[-1][2] == style:
            pieces[-1][1].append(character)
        else:
            pieces.append((column, [character], style))
    return [(column, "".join(text), style) for column, text, style in pieces
            if "".join(text).strip()]


def svg(page, columns):
    width, height = columns * CELL_WIDTH + 24, len(page) * CELL_HEIGHT + 24
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="%s, '
           'monospace" font-size="%d">' % (width, height, FONT, FONT_SIZE),
           '<rect width="100%%" height="100%%" rx="6" fill="%s"/>' % PAPER]
    for number, row in enumerate(page):
        for column, text, (color, bold) in runs(row):
            out.append('<text x="%.1f" y="%d" fill="%s" textLength="%.1f" xml:space="preserve"%s>'
                       "%s</text>" % (12 + column * CELL_WIDTH, 26 + number * CELL_HEIGHT, color,
                                      len(text) * CELL_WIDTH, ' font-weight="bold"' if bold else "",
                                      html.escape(text)))
    return "\n".join(out + ["</svg>", ""])


def png(page, columns, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    width, height = columns * CELL_WIDTH + 24, len(page) * CELL_HEIGHT + 24
    figure = pyplot.figure(figsize=(width / 100, height / 100), dpi=100, facecolor=PAPER)
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for number, row in enumerate(page):
        for column, (character, (color, bold)) in enumerate(row):
            if character != " ":
                axes.text(12 + column * CELL_WIDTH, 26 + number * CELL_HEIGHT, character,
                          color=color, family=FONT, size=FONT_SIZE * 0.72, parse_math=False,
                          weight="bold" if bold else "normal")
    figure.savefig(path, facecolor=PAPER)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("files", nargs="+")
    end = sys.argv.index("--") if "--" in sys.argv else parser.error("-- COMMAND is missing")
    arguments = parser.parse_args(sys.argv[1:end])
    screen, status = record(sys.argv[end + 1:], arguments.columns, arguments.rows)
    for path in arguments.files:
        if path.endswith(".png"):
            png(screen.page(), arguments.columns, path)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(svg(screen.page(), arguments.columns))
    sys.exit(status)


if __name__ == "__main__":
    main()
