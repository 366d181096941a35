"""The terminal that pictures are drawn of."""
import unittest
import xml.etree.ElementTree as ET

from tools import terminal_picture as terminal


def screen(text, columns=20, rows=4):
    made = terminal.Screen(columns, rows)
    made.feed(text)
    return made


class Text(unittest.TestCase):
    def test_lines(self):
        self.assertEqual(screen("a\r\nbc\r\n").lines(), ["a", "bc", "", ""])

    def test_it_scrolls(self):
        self.assertEqual(screen("1\r\n2\r\n3\r\n4\r\n5").lines(), ["2", "3", "4", "5"])

    def test_a_page_is_drawn_again(self):
        self.assertEqual(screen("old text\r\nmore\x1b[Hnew\x1b[K\r\n\x1b[J").lines(),
                         ["new", "", "", ""])

    def test_places(self):
        self.assertEqual(screen("\x1b[2;3Hx\x1b[9;99Hy").lines(), ["", "  x", "", " " * 19 + "y"])

    def test_a_sequence_in_two_pieces(self):
        made = terminal.Screen(20, 4)
        rest = made.feed("ab\x1b[")
        self.assertEqual(rest, "\x1b[")
        self.assertEqual(made.feed(rest + "1;1Hc"), "")
        self.assertEqual(made.lines()[0], "cb")

    def test_the_page_before_it_was_left(self):
        made = screen("\x1b[?1049hlive\x1b[?1049l\x1b[2Jshell")
        self.assertEqual("".join(c for c, _ in made.page()[0]).rstrip(), "live")


class Drawing(unittest.TestCase):
    def test_colors_and_bold(self):
        row = screen("a\x1b[1;32mbc\x1b[0m d").page()[0]
        self.assertEqual([(column, text.strip(), style) for column, text, style
                          in terminal.runs(row)],
                         [(0, "a", (terminal.INK, False)), (1, "bc", (terminal.COLORS[2], True)),
                          (3, "d", (terminal.INK, False))])

    def test_svg_is_xml(self):
        text = terminal.svg(screen("<a & b>").page(), 20)
        self.assertEqual(ET.fromstring(text)[1].text.strip(), "<a & b>")

    def test_a_real_program(self):
        made, status = terminal.record(["/bin/sh", "-c", "printf 'h\\303\\251llo'; exit 3"], 20, 4)
        self.assertEqual((made.lines()[0], status), ("h\u00e9llo", 3))


if __name__ == "__main__":
    unittest.main()
