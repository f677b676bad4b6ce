"""Cases of trainweb.ops.einsum."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import bools, i32, i64, literal

from trainweb.errors import UnsupportedError
from trainweb.ops import einsum

CASES[einsum.Einsum] = Cases(
    samples=(
        Sample([(2, 3), (3, 4)], {"equation": "ij,jk->ik"}),
        Sample([(2, 3, 4), (1, 4, 5)], {"equation": "...ij,...jk->...ik"}),
        Sample([(1, 3), (4, 1, 3), (2, 3)], {"equation": "...i,...i,...i->..."}),
        Sample([(1, 1), (2, 3)], {"equation": "...,...->..."}),
        Sample([literal("uint8", [[200, 3]]), literal("uint8", [[2], [7]])], {"equation": "ij,jk->ik"}),
        Sample([literal("uint64", [2**63, 1]), literal("uint64", [3, 5])], {"equation": "i,i->"}),
        Sample([(2, 3, 4, 5), (2, 3, 6, 5)], {"equation": "bhid,bhjd->bhij"}),
        Sample([(2, 4, 3, 5), (2, 6, 3, 5)], {"equation": "bihd,bjhd->bhij"}),
        Sample([(2, 3, 4), (2, 4, 5)], {"equation": "... i j, ... j k"}),
        Sample([(2, 3, 4), (4, 5)], {"equation": "...i,ij->...j"}),
        Sample([(3, 4), (2, 4), (3, 2)], {"equation": "ik,jk,ij->i"}),
        Sample([(3,), (4,)], {"equation": "i,j->ji"}),
        Sample([(3, 4), (3, 4)], {"equation": "ij,ij->"}),
        Sample([(2, 3, 4)], {"equation": "ijk->kj"}),
        Sample([(4, 4)], {"equation": "ii->i"}),
        Sample([(4, 4)], {"equation": "ii"}),
        Sample([(3, 2, 3), (2, 3, 3)], {"equation": "iji,jki->kj"}),
        Sample([(3, 4), (5, 3)], {"equation": "ij,ki"}),
        Sample([(2, 1, 3), (1, 3, 2)], {"equation": "...ij,...jk->...ik"}, grad=()),
        Sample([(0, 3), (3, 4)], {"equation": "ij,jk->ik"}, grad=()),
        Sample([i64([[1, 2, 2**40]]), i64([[3], [-4], [5]])], {"equation": "ij,jk->ik"}),
        Sample([i32([[1, 2], [3, 4]]), i32([[5, 6], [7, 8]])], {"equation": "bi,bj->bij"}),
        Sample([i64([[1, 2], [3, 4]]), i64([[5, 6], [7, 8]]), i64([2, 3])], {"equation": "ij,kj,k->ik"}),
        Sample([i64([[1, 2], [3, 4]])], {"equation": "ii"}),
        Sample([i64([[1, 2], [3, 4]])], {"equation": "ij->j"}),
        Sample([(2, 0), (0, 4)], {"equation": "ij,jk->ik"}, grad=()),
    ),
    bad=(
        Bad([(2, 3), (4, 4)], {"equation": "ij,jk->ik"}),
        Bad([(2, 3), (3, 4)], {"equation": "ij->ij"}),
        Bad([(2, 3)], {"equation": "ijk->ij"}),
        Bad([(2, 3)], {"equation": "ij->ik"}),
        Bad([(2, 3)], {"equation": "ij->ii"}),
        Bad([(2, 3)], {"equation": "i1->i"}),
        Bad([(2, 3), i64([[1, 2, 3]])], {"equation": "ij,kj->ik"}),
        Bad([bools([True])], {"equation": "i->"}, UnsupportedError),
    ),
)
