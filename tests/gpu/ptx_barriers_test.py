"""No barrier of the kernels is one of which ptxas may make two, and such a one would be found."""
import sys
import unittest

from tests.gpu import ptx_barriers

# As nvcc writes `__syncthreads_and(%s)`.
_KERNEL = """
.visible .entry K(
	.param .u32 K_param_0
)
{
	.reg .pred 	%%p<3>;
	.reg .b32 	%%r<5>;

	ld.param.u32 	%%r1, [K_param_0];
	%s
	{ 
	.reg .pred 	%%p1; 
	.reg .pred 	%%p2; 
	setp.ne.u32 	%%p1, %s, 0; 
	bar.red.and.pred 	%%p2, 0, %%p1; 
	selp.u32 	%%r4, 1, 0, %%p2; 
	}
	ret;
}
"""
# What another function does with a register of that name says nothing.
_OTHER = """
.func F(
)
{
	mov.u32 	%r2, 7;
	add.s32 	%r3, %r2, %r2;
	ret;
}
"""


def _lines(definitions, argument="%r2"):
    ptx = _OTHER + _KERNEL % (definitions, argument) + _OTHER
    return [ptx.splitlines()[line - 1].strip().split()[0]
            for line, _ in ptx_barriers.doubtful_barriers(ptx)]


class PtxBarriersTest(unittest.TestCase):

    def test_finds_constants(self):
        self.assertEqual(_lines("mov.u32 \t%r2, 1;"), ["bar.red.and.pred"])
        self.assertEqual(_lines("mov.b32 \t%r2, 0;"), ["bar.red.and.pred"])
        self.assertEqual(_lines("", argument="1"), ["bar.red.and.pred"])

    def test_finds_nothing_else(self):
        self.assertEqual(_lines("add.s32 \t%r2, %r1, 1;"), [])
        self.assertEqual(_lines("mov.u32 \t%r2, %r1;"), [])
        self.assertEqual(_lines("mov.u32 \t%r2, 1;\n\t@%p0 mov.u32 \t%r2, 0;"), [])

    def test_kernels_have_none(self):
        paths = [path for path in sys.argv[1:] if path.endswith(".ptx")]
        self.assertTrue(paths)
        count = 0
        for path in paths:
            with open(path, encoding="utf-8") as f:
                ptx = f.read()
            count += ptx_barriers.barrier_count(ptx)
            self.assertEqual(ptx_barriers.doubtful_barriers(ptx), [], path)
        self.assertGreater(count, 0, "no barrier was recognized")


if __name__ == "__main__":
    unittest.main()
