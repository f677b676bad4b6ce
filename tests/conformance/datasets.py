"""Data sets as data: one table, which Python and a page run with the same rows, bytes and errors.

A data set is a source and the steps that follow it. The outcome is its columns or rows as JSON, or an error.
"""

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from trainweb.data import Dataset, from_csv
from trainweb.errors import TrainwebError

Chain = list[list[Any]]


def text(header: str, *lines: str) -> str:
    return "\n".join((header, *lines, ""))


def csv(contents: str, columns: dict[str, Any], **options: Any) -> list[Any]:
    return ["csv", contents, columns, options]


MARKED = '\ufeffa,b,kind,"n\nm"\n1,2.5,cat,1\n\n-3,4e1,dog,0\r\n5,".5", cat ,true\n'
GAPS = text("n,m,k", "1,2,NA", ",3,b", "4, nan ,b", "5,6,", "7,?,NA")


def gaps(missing: Any, dtype: str = "float64") -> list[Any]:
    return csv(GAPS, {"x": ["n", "m"], "y": "k"}, dtypes={"x": dtype}, classes={"y": ["NA", "b"]}, missing=missing)


TABLE = csv(
    text(
        "height,weight,colour,size,kind",
        "1.5,10,red,3,\U0001f600",
        "2.25,0,blue,1,\ufb01",
        "0.1,3.3,re,3,b",
        "7,-4,green,2,\ufb01",
    ),
    {"numbers": ["height", "weight"], "colour": "colour", "size": "size", "labels": "kind"},
    dtypes={"colour": "string", "size": "int64", "labels": "string"},
)
PARTS = ["numbers", "colour", "size"]
WHOLE = ["columns", {"y": ["float64", [3], [1, float("nan"), 2]], "z": ["float64", [3], [1, 1e300, 2]]}]
FITTED = [["standardize", "numbers"], ["one_hot", "colour", "size"], ["categories", "labels"], ["concat", "x", PARTS]]
TYPED = [["fill_mean", "numbers"], ["standardize", "numbers"], ["one_hot", "size", "colour"], ["concat", "x", PARTS]]
ASKED: list[dict[str, Any]] = [
    {"numbers": [dtype, [1, 2], [2, 3]], "size": [size, [1], [1]], "colour": ["string", [1], ["blue"]]}
    for dtype, size in (("float32", "int64"), ("float64", "int32"), ("int64", "int64"), ("float32", "float32"))
]
MIXED = {"n": ["int64", [2], [1, 3]], "m": ["float64", [2, 1], [0.1, 0.2]], "k": ["float32", [2], [2, 5]]}
TRUTHS = csv("a,b\n0,true\n1,false\n", {"x": "a", "y": "b"}, dtypes={"x": "bool", "y": "bool"})
HALF = csv(text("a,b,c", "1,0.1,7", ",0.7,3", "4,NA,", "2.5,0.4,?"), {"x": ["a", "b"], "y": "c"}, missing="keep")
LISTED = ["listed", 12]
RAGGED = ["lengths", [3, 8, 2, 5, 4]]
ELEVEN = ["columns", {"x": ["float32", [11], list(range(11))]}]
NAN_ONLY = ["columns", {"numbers": ["float64", [2, 1], [float("nan")] * 2]}]
F4, F8, I8 = np.float32, np.float64, np.int64


def x_is(*rows: Any) -> list[dict[str, Any]]:
    return [{"x": F4(row)} for row in rows]


def ids(*rows: list[int]) -> np.ndarray:
    return I8(rows)


def error(said: str, name: str = "FeedError") -> tuple[str, str]:
    return name, said


DATASETS: list[tuple[str, Chain, Any]] = [
    ("map and filter", [["numbers", 7], ["doubled"], ["above", 4]], x_is(6, 8, 10, 12)),
    ("every third, but for few", [["numbers", 50], ["thirds"], ["above", 4], ["take", 4]], x_is(6, 9, 12, 15)),
    ("batches", [["numbers", 7], ["batch", 3, "keep"]], x_is([0, 1, 2], [3, 4, 5], [6])),
    ("dropped rows", [["numbers", 7], ["batch", 3, "drop"]], x_is([0, 1, 2], [3, 4, 5])),
    ("padded batches", [["numbers", 7], ["batch", 3, "pad"]], x_is([0, 1, 2], [3, 4, 5], [6, 0, 1])),
    ("one padded batch", [["numbers", 2], ["batch", 5, "pad"]], x_is([0, 1, 0, 1, 0])),
    ("rows of a stream", [["numbers", 7], ["take", 2]], x_is(0, 1)),
    ("rows of columns", [ELEVEN, ["take", 2]], {"x": F4([0, 1])}),
    ("the first rows", [ELEVEN, ["split", 0.3, None, 0]], {"x": F4(range(8))}),
    ("the last rows", [ELEVEN, ["split", 0.3, None, 1]], {"x": F4([8, 9, 10])}),
    *((f"shuffled rows, part {part}", [ELEVEN, ["split", 0.3, 2, part]], None) for part in (0, 1)),
    ("a shuffled stream", [["numbers", 60], ["shuffle", 8, 3]], None),
    (
        "buckets",
        [RAGGED, ["bucket", [4, 8], 2, ["ids"]]],
        [
            {"ids": ids([1, 2, 3, 0], [1, 2, 0, 0]), "label": I8([3, 2]), "side": F4([[1, 2, 3]] * 2)},
            {
                "ids": ids([*range(1, 9)], [1, 2, 3, 4, 5, 0, 0, 0]),
                "label": I8([8, 5]),
                "side": F4([[1, 2, 3]] * 2),
            },
            {"ids": ids([1, 2, 3, 4]), "label": I8([4]), "side": F4([[1, 2, 3]])},
        ],
    ),
    (
        "a row beyond the buckets",
        [RAGGED, ["bucket", [4], 2, ["ids"]]],
        error("Row 1 of the data has length 8, and the last bucket holds 4: give a larger bound"),
    ),
    (
        "buckets with a number of their own",
        [RAGGED, ["bucket", [4, 8], 3, {"ids": -100}], ["take", 1]],
        [
            {
                "ids": ids([1, 2, 3, -100], [1, 2, -100, -100], [1, 2, 3, 4]),
                "label": I8([3, 2, 4]),
                "side": F4([[1, 2, 3]] * 3),
            }
        ],
    ),
    (
        "buckets of floats with a number of their own",
        [RAGGED, ["bucket", [4, 8], 3, {"ids": 0, "side": 0.5}]],
        error("'side' of a row of length 8 is float32[3]: the first axis"),
    ),
    (
        "half a number in a bucket",
        [RAGGED, ["bucket", [9], 3, {"ids": 0.5}]],
        error("padded['ids'] is 0.5; it must be int64, as the row has", "ModelError"),
    ),
    (
        "no number in a bucket",
        [RAGGED, ["bucket", [9], 3, {"ids": "0"}]],
        error("padded['ids'] is '0'; it must be a number", "ModelError"),
    ),
    (
        "buckets of others",
        [RAGGED, ["bucket", [9], 3, ["side"]]],
        error("'side' of a row of length 8 is float32[3]: the first axis"),
    ),
    (
        "buckets of nobody",
        [RAGGED, ["bucket", [9], 3, ["ids", "id"]]],
        error("'id' of a row of length 3 is missing"),
    ),
    ("batched twice", [["numbers", 4], ["batch", 2, "keep"], ["batch", 2, "keep"]], error("is already batched")),
    (
        "buckets of batches",
        [RAGGED, ["batch", 2, "keep"], ["bucket", [4], 2, ["ids"]]],
        error("is already batched"),
    ),
    *(
        (f"no setting: {step}", [["numbers", 4], step], error(said, "ModelError"))
        for step, said in (
            (["batch", 0, "keep"], "is 0; it must be an integer >= 1"),
            (["batch", 2, "cut"], "remainder is 'cut'; it must be keep, drop or pad"),
            (["shuffle", 0, 0], "is 0; it must be an integer >= 1"),
            (["prefetch", -1], "is -1; it must be an integer >= "),
        )
    ),
    (
        "no decimal",
        [csv("a\n1\n", {"x": "a"}, decimal="")],
        error("decimal is ''; it must be a point or a", "ModelError"),
    ),
    (
        "one text",
        [["rows", {"x": [1.0], "c": "red"}]],
        error("'c' is one text; its first axis must count rows: one row"),
    ),
    (
        "the last rows of a list",
        [LISTED, ["split", 0.3, None, 1], ["batch", 9, "keep"]],
        [{"x": F4([9, 10, 11]), "c": I8([0, 0, 1])}],
    ),
    (
        "the rows of a list by class",
        [LISTED, ["by class", 0.5, 1], ["batch", 9, "keep"]],
        [{"x": F4([6, 7, 8, 9, 10, 11]), "c": I8([0, 0, 1, 0, 0, 1])}],
    ),
    *((f"drawn rows of a list, part {k}", [LISTED, ["split", 0.3, 2, k], ["batch", 9, "keep"]], None) for k in (0, 1)),
    (
        "a split of a list without classes",
        [["rows", [{"x": 1.5, "c": [1]}] * 4], ["by class", 0.5, 0]],
        error("'stratify' needs one whole number a row in 'c'"),
    ),
    (
        "a split of a stream",
        [["numbers", 4], ["split", 0.5, None, 0]],
        error("give arrays, a list of rows, or two datasets"),
    ),
    ("a split of an empty list", [["rows", []], ["split", 0.5, None, 0]], error("A stream of rows cannot be split")),
    ("a split of everything", [ELEVEN, ["split", 1.5, None, 0]], error("is 1.5; it must be", "ModelError")),
    (
        "numbers and classes",
        [csv(MARKED, {"x": ["b", "a"], "y": "kind"}, classes={"y": ["dog", "cat"]})],
        {"x": F4([[2.5, 1], [40, -3], [0.5, 5]]), "y": I8([1, 0, 1])},
    ),
    (
        "truths",
        [csv(MARKED, {"x": "n\nm", "y": "a"}, dtypes={"x": "bool", "y": "int64"})],
        {"x": np.array([True, False, True]), "y": I8([1, -3, 5])},
    ),
    (
        "another delimiter",
        [csv("a;b\n1;2\n", {"x": "a", "y": ["b"]}, delimiter=";", dtypes={"x": "uint8", "y": "float64"})],
        {"x": np.uint8([1]), "y": F8([[2]])},
    ),
    (
        "a decimal comma, and a filled gap",
        [
            csv(
                'a;b\n-1234,5;\n"2e3";1,5\n',
                {"x": ["a", "b"]},
                delimiter=";",
                decimal=",",
                missing={"b": 0.5},
            )
        ],
        {"x": F4([[-1234.5, 0.5], [2000, 1.5]])},
    ),
    ("the largest number", [csv("a\n3.4028235e38\n", {"x": "a"})], {"x": F4([3.4028235e38])}),
    ("a class of no letters", [csv('a\n""\n\n1\n', {"x": "a"}, classes={"x": ["", "1"]})], {"x": I8([0, 1])}),
    (
        "digits as Python reads them",
        [csv(f"a\n{'0' * 4299}7\n", {"x": "a"}, dtypes={"x": "int64"})],
        {"x": I8([7])},
    ),
    (
        "text that is empty",
        [csv("c\nNA\n\n?\nnull\n", {"c": "c"}, dtypes={"c": "string"})],
        {"c": np.array(["NA", "?", "null"])},
    ),
    *(
        (f"csv: {contents!r:.40} {options}", [csv(contents, columns, **options)], error(said))
        for contents, columns, options, said in (
            (
                "a\n1\nx\n",
                {"x": "a"},
                {},
                "Line 3, column 'a': 'x' is no number. Give a column of text or dates the type 'x'",
            ),
            ("a\n1\n?\n", {"x": "a"}, {"missing": {"a": "no"}}, "Line 3, column 'a': 'no' is no number"),
            ("a,c\n1,2\n\n\n\n", {"x": "b"}, {}, "The file has no column 'b'; it has a, c"),
            ("a;b\n1;2\n", {"x": "b"}, {}, "The file has no column 'b'; it has only a;b. Is ',' the 'delimiter'"),
            *(
                (
                    f'a\n"{value}"\n',
                    {"x": "a"},
                    {},
                    f"Line 2, column 'a': '{value}' is no number. Give a column of text",
                )
                for value in ("2016-10-18", "86,0", "2,500", "3 Main St", "12:30", "1e5x", "4-5")
            ),
            *(
                (f'a\n"{value}"\n', {"x": "a"}, {}, f"Line 2, column 'a': '{value}' is a number with a unit. Take it")
                for value in ("5%", "230.7 kWh", "-1,200 m²", "3 rooms")
            ),
            ("a\n1.200\n", {"x": "a"}, {"decimal": ","}, "Line 2, column 'a': '1.200' is no number"),
            ("a,b\n1,2\n3\n", {"x": "a"}, {}, "Line 3 has 1 values; the header has 2"),
            ('a,b\n"1\n",2\n3,\n', {"x": "b"}, {}, "Line 4, column 'b': the value is missing"),
            ("a\n1.5\n", {"x": "a"}, {"dtypes": {"x": "int64"}}, "Line 2, column 'a': '1.5' is not a valid int64"),
            ("a\n300\n", {"x": "a"}, {"dtypes": {"x": "uint8"}}, "'300' is not a valid uint8"),
            ("a\n2\n", {"x": "a"}, {"dtypes": {"x": "bool"}}, "'2' is not a valid bool"),
            ("a\ncow\n", {"x": "a"}, {"classes": {"x": ["cat"]}}, "'cow' is not one of cat"),
            ("a\n", {"x": "a"}, {}, "The data has no rows"),
            ("", {"x": "a"}, {}, "The data has no rows"),
            ("a\n1\n", {"x": "a"}, {"dtypes": {"y": "int64"}}, "'y' is not one of the inputs"),
            ("a\n1\n", {"x": "a"}, {"dtypes": {"x": "float16"}}, "'x' cannot be read as float16"),
            ("a\n1\n", {"x": "a"}, {"classes": {"y": ["cat"]}}, "'y' is not one of the inputs"),
            ("a\n1\nnan\n", {"x": "a"}, {}, "Line 3, column 'a': the value is missing"),
            ("a\n1\n1_0\n", {"x": "a"}, {}, "Line 3, column 'a': '1_0' is no number"),
            ("a\n1_0\n", {"x": "a"}, {"dtypes": {"x": "int64"}}, "Line 2, column 'a': '1_0' is no number"),
            ("a\n-1e39\n", {"x": "a"}, {}, "Line 2, column 'a': '-1e39' is not a valid float32"),
            ("a\n1e309\n", {"x": "a"}, {"dtypes": {"x": "float64"}}, "'1e309' is not a valid float64"),
            ('a,b\n"1\n",2\n3,"x\n4,y\n', {"x": "a"}, {}, "Line 4: a value between quotes does not end"),
            ('a,b\n"1\n2","3\n', {"x": "a"}, {}, "Line 2: a value between quotes does not end"),
            ('a,b\r\n"1","2"\r\n1,"2"3\n', {"x": "a"}, {}, "Line 3: a value between quotes does not end"),
            ('a,b\n1,2\n"3\n4","5\n', {"x": "a"}, {}, "Line 3: a value between quotes does not end"),
            ('a\n"1\r\n', {"x": "a"}, {}, "Line 2: a value between quotes does not end"),
            ('a\n"1', {"x": "a"}, {}, "Line 2: a value between quotes does not end"),
            ('a,b\n1,"say ""3"", 4"\n2,5"6\n', {"x": "b"}, {}, "Line 2, column 'b': 'say \"3\", 4' is no"),
            ('a\n"1"""\n2', {"x": "a"}, {}, "Line 2, column 'a': '1\"' is no number"),
            ("a,b,a\n1,2,3\n", {"x": "a"}, {}, "The file has more than one column 'a'"),
            (f"a\n-{'0' * 4300}7\n", {"x": "a"}, {"dtypes": {"x": "int64"}}, "is not a valid int64"),
        )
    ),
    ("gaps that are dropped", [gaps("drop")], {"x": F8([[1, 2]]), "y": I8([0])}),
    (
        "gaps with a value",
        [gaps({"n": -1, "m": 0.5, "k": "b"})],
        {"x": F8([[1, 2], [-1, 3], [4, 0.5], [5, 6], [7, 0.5]]), "y": I8([0, 1, 1, 1, 0])},
    ),
    (
        "gaps between integers",
        [gaps({"n": -1.0, "m": 9, "k": "b"}, "int64")],
        {"x": I8([[1, 2], [-1, 3], [4, 9], [5, 6], [7, 9]]), "y": I8([0, 1, 1, 1, 0])},
    ),
    (
        "gaps that are NaN",
        [csv(GAPS, {"x": ["n", "m"]}, missing="keep")],
        {"x": F4([[1, 2], [np.nan, 3], [4, np.nan], [5, 6], [7, np.nan]])},
    ),
    (
        "gaps that are NaN, but for some columns",
        [gaps({"*": "keep", "k": "b"})],
        {"x": np.array([[1, 2], [np.nan, 3], [4, np.nan], [5, 6], [7, np.nan]]), "y": I8([0, 1, 1, 1, 0])},
    ),
    (
        "gaps that are NaN, but for a column of numbers",
        [gaps({"*": "keep", "k": "b", "m": 8})],
        {"x": np.array([[1, 2], [np.nan, 3], [4, 8], [5, 6], [7, 8]]), "y": I8([0, 1, 1, 1, 0])},
    ),
    (
        "rows with gaps left out, but for some columns",
        [gaps({"*": "drop", "n": -1, "k": "b"})],
        {"x": np.array([[1, 2], [-1, 3], [5, 6.0]]), "y": I8([0, 1, 1])},
    ),
    *(
        (f"gaps: {missing}", [gaps(missing)], error(said, name))
        for missing, said, name in (
            ("error", "Line 3, column 'n': the value is missing (''). Set 'missing' to \"drop\"", "FeedError"),
            ({"n": 1}, "Line 4, column 'm': the value is missing ('nan')", "FeedError"),
            ({"n": 1, "m": 1, "k": "c"}, "Line 5, column 'k': 'c' is not one of NA, b", "FeedError"),
            (
                {"z": 1},
                "'missing' names the column 'z', but 'columns' has only n, m, k. Leave it out.",
                "FeedError",
            ),
            (
                "keep",
                "Line 5, column 'k': a missing text needs a value. Set 'missing' to 'k': \"none\", of dates \"NaT\", "
                'and "*": "keep" for all others.',
                "FeedError",
            ),
            ("fill", "missing is 'fill'", "ModelError"),
            (3, "missing is 3", "ModelError"),
            ({"*": "keep", "n": 1}, "Line 5, column 'k': a missing text needs a value", "FeedError"),
            ({"m": 1, "n": 1}, "Line 5, column 'k': the value is missing", "FeedError"),
            ({"*": "fill"}, 'missing[\'*\'] is \'fill\'; it must be "error", "drop" or "keep"', "ModelError"),
            ({"*": 0}, "missing['*'] is 0", "ModelError"),
        )
    ),
    ("a table", [TABLE, *FITTED], None),
    (
        "numbers of several types side by side",
        [["columns", MIXED], ["concat", "x", [*MIXED]]],
        {"x": F4([[1, 0.1, 2], [3, 0.2, 5]])},
    ),
    (
        "whole numbers in columns of floats",
        [["columns", {"x": ["float32", [3, 2], [7, -1, -3, 2, 0, -1]]}], ["one_hot", "x"]],
        {"x": F4([[0, 0, 1, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 1, 0]])},
    ),
    (
        "texts side by side",
        [TABLE, ["concat", "x", ["colour", "labels"]], ["one_hot", "x"], ["take", 1]],
        None,
    ),
    (
        "rows without the labels that steps join",
        [["columns", {"x": ["float32", [1], [2]]}], ["steps of", [["columns", MIXED], ["concat", "y", [*MIXED]]]]],
        {"x": F4([2])},
    ),
    (
        "rows with names",
        [["rows", [{"n": [1.5, 2], "c": "b"}, {"c": "a", "n": [3, 4]}]], ["one_hot", "c"], ["concat", "x", ["n", "c"]]],
        {"x": F4([[1.5, 2, 0, 1], [3, 4, 1, 0]])},
    ),
    ("integers without gaps", [TABLE, ["fill_median", "size"], ["take", 2]], None),
    (
        "a row asked without numbers",
        [["rows", [{"numbers": [None, None]}]], ["steps of", [TABLE, ["fill_median", "numbers"]]]],
        {"numbers": F4([[1.875, 1.65]])},
    ),
    (
        "gaps in integers that were fitted without",
        [["columns", {"size": ["float64", [2], [np.nan, 7]]}], ["steps of", [TABLE, ["fill_median", "size"]]]],
        {"size": F8([2.5, 7])},
    ),
    (
        "truths as numbers",
        [TRUTHS, ["steps of", [TRUTHS, ["standardize", "x"], ["one_hot", "y"], ["concat", "z", ["x", "y"]]]]],
        {"z": F4([[-1, 0, 1], [1, 1, 0]])},
    ),
    ("truths side by side", [TRUTHS, ["concat", "z", ["x", "y"]]], {"z": np.uint8([[0, 1], [1, 0]])}),
    (
        "categories that come later",
        [
            ["columns", {"size": ["int64", [3], [3, 2, 9]], "colour": ["string", [3], ["red", "mauve", ""]]}],
            ["steps of", [TABLE, ["one_hot or zeros", "colour", "size"], ["concat", "x", ["size", "colour"]]]],
        ],
        {"x": F4([[0, 0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0], [0] * 7])},
    ),
    ("a table that was fitted before", [TABLE, ["steps of", [TABLE, *FITTED]]], None),
    ("a table that is fitted again", [TABLE, *FITTED, ["steps of", [TABLE, *FITTED]]], None),
    ("a part of a table", [TABLE, ["split", 0.5, 3, 1], ["steps of", [TABLE, *FITTED]]], None),
    ("texts of a part", [TABLE, ["split", 0.5, 3, 0]], None),
    ("steps that rows keep", [TABLE, *FITTED, ["take", 2]], None),
    ("gaps that the mean fills", [HALF, ["fill_mean", "x"], ["fill_median", "y"]], None),
    (
        "gaps that the means of a list of inputs fill",
        [HALF, ["fill_mean", ["x"]], ["fill_median", ["y"]]],
        {"x": F4([[1, 0.1], [2.5, 0.7], [4, 0.4], [2.5, 0.4]]), "y": F4([7, 3, 5, 5])},
    ),
    (
        "gaps that another mean fills",
        [HALF, ["steps of", [HALF, ["fill_mean", "x"], ["fill_median", "y"]]]],
        {"x": F4([[1, 0.1], [2.5, 0.7], [4, 0.4], [2.5, 0.4]]), "y": F4([7, 3, 5, 5])},
    ),
    *(
        (f"rows that are asked later {k}", [["columns", asked], ["steps of", [TABLE, *TYPED]]], None)
        for k, asked in enumerate(ASKED)
    ),
    (
        "a row asked of no category",
        [["columns", ASKED[0] | {"size": ["float64", [1], [1.5]]}], ["steps of", [TABLE, *TYPED]]],
        error("Row 0 has 1.5 as 'size', and the fitted rows have only 1, 2, 3"),
    ),
    (
        "a row asked without its text",
        [["columns", ASKED[0] | {"colour": ["float32", [1], [float("nan")]]}], ["steps of", [TABLE, *TYPED]]],
        error("'colour' is float32; 'one_hot' takes texts. For a missing one, give its fill value."),
    ),
    ("rows asked of an older file", [["columns", ASKED[0]], ["untyped steps of", [TABLE, *TYPED]]], None),
    *(
        (f"no such step: {chain[-1]}", chain, error(said, name))
        for chain, said, name in (
            (
                [TABLE, ["fill_mean", "colour"]],
                "'colour' is string; the step 'fill' takes float32, float64",
                "FeedError",
            ),
            ([NAN_ONLY, ["fill_median", "numbers"]], "'numbers' has no number in column 0, only NaN", "FeedError"),
            (
                [TABLE, ["standardize", "colour"]],
                "'colour' is string; the step 'standardize' takes float32, float64, int64, int32, uint8. "
                "Make numbers of digits (float, Number), float32 of other numbers, and columns of names by '",
                "FeedError",
            ),
            ([TABLE, ["one_hot", "numbers"]], "Row 0 has 1.5 as 'numbers'; the step 'one_hot' takes", "FeedError"),
            ([WHOLE, ["one_hot", "y"]], "as 'y'; the step 'one_hot' takes whole", "FeedError"),
            ([WHOLE, ["one_hot", "z"]], "as 'z'; the step 'one_hot' takes whole", "FeedError"),
            ([TABLE, ["categories", "size"]], "'size' is int64; the step 'categories' takes", "FeedError"),
            ([TABLE, ["standardize", "width"]], "'width'", "FeedError"),
            ([TABLE, ["concat", "x", ["size", "colour"]]], "'colour' is string and 'size' is float32", "FeedError"),
            ([TABLE, ["concat", "x", ["width", "depth"]]], "The data has no input 'width'", "FeedError"),
            (
                [["columns", {"n": MIXED["n"]}], ["steps of", [["columns", MIXED], ["concat", "y", [*MIXED]]]]],
                "The data has no input 'm'; the names of its inputs are n",
                "FeedError",
            ),
            ([TABLE, ["concat", "size", ["numbers"]]], "name is 'size'; it must be a name that no", "ModelError"),
            ([["rows", [{"n": 1}, {"m": 1}]], ["preprocess", []]], "Row 1 of the data has m; the first", "FeedError"),
            ([["rows", [[1], [2]]], ["preprocess", []]], "A stream of rows cannot be preprocessed", "FeedError"),
            ([["numbers", 3], ["preprocess", []]], "A stream of rows cannot be preprocessed", "FeedError"),
            (
                [TABLE, ["steps of", [TABLE, ["take", 1], ["one_hot", "colour"]]]],
                "Row 1 has 'blue' as 'colour', and the fitted rows have only 'red'",
                "FeedError",
            ),
            (
                [TABLE, ["preprocess", [{"type": "standardize", "input": "numbers", "mean": [1], "std": [1]}]]],
                "'numbers' has 2 values in a row; the preprocessing was fitted on 1",
                "FeedError",
            ),
            *(
                ([ELEVEN, ["preprocess", steps]], "it must be the 'preprocessing' of a dataset", "ModelError")
                for steps in (
                    [{"type": "scale"}],
                    [{"type": "concat", "input": "x", "parts": []}],
                    [{"type": "standardize", "input": "x", "mean": ["1"], "std": [1]}],
                    [{"type": "one_hot", "input": "x", "categories": [1], "more": 2}],
                    [{"type": "concat", "input": "x", "parts": ["a"], "dtype": 3}],
                    [{"type": "one_hot", "input": "x", "categories": [[1]], "unknown": "ones"}],
                    [{"type": "categories", "input": "x", "categories": [[1]], "unknown": "zeros"}],
                )
            ),
        )
    ),
]
"""A name, a source with its steps, and what comes: rows or columns, the class and the start of an error, or None where
only the page is compared, with Python, whose results have an oracle elsewhere."""


def columns_of(given: dict[str, Any]) -> Dataset:
    return Dataset({n: np.array(v, None if t == "string" else t).reshape(dims) for n, (t, dims, v) in given.items()})


def lengths(sizes: list[int]) -> Dataset:
    side = F4([1, 2, 3])
    return Dataset([{"ids": np.arange(1, n + 1), "label": I8(n), "side": side} for n in sizes])


SOURCES: dict[str, Callable[..., Dataset]] = {
    "numbers": lambda n: Dataset(lambda: ({"x": F4(k)} for k in range(n))),
    "columns": columns_of,
    "rows": Dataset,
    "lengths": lengths,
    "listed": lambda n: Dataset([{"x": F4(k), "c": I8(k % 3 // 2)} for k in range(n)]),
    "csv": lambda contents, columns, options: from_csv(
        io.StringIO(contents.removeprefix("\ufeff"), newline=""), columns, **options
    ),
}


def untyped(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps as older files have them."""
    return [{n: v for n, v in step.items() if n != "dtype"} for step in steps]


STEPS: dict[str, Callable[..., Dataset]] = {
    "doubled": lambda data: data.map(lambda row: {"x": row["x"] * 2}),
    "above": lambda data, least: data.filter(lambda row: bool(row["x"] > least)),
    "thirds": lambda data: data.filter(lambda row: bool(row["x"] % 3 == 0)),
    "split": lambda data, share, seed, part: data.split(share, seed)[part],
    "by class": lambda data, share, part: data.split(share, stratify="c")[part],
    "bucket": lambda data, bounds, size, padded: data.bucket(lambda row: len(row["ids"]), bounds, size, padded),
    "one_hot or zeros": lambda data, *names: data.one_hot(*names, unknown="zeros"),
    "steps of": lambda data, chain: data.preprocess(dataset(chain).preprocessing),
    "untyped steps of": lambda data, chain: data.preprocess(untyped(dataset(chain).preprocessing)),
}
"""What is no method of a data set, or has a function among its arguments."""


def dataset(chain: Chain) -> Dataset:
    """The data set of a chain."""
    (kind, *given), *steps = chain
    data = SOURCES[kind](*given)
    for name, *arguments in steps:
        step = STEPS.get(name)
        data = step(data, *arguments) if step else getattr(data, name)(*arguments)
    return data


def made(chain: Chain) -> Any:
    """Columns of a data set, or its rows where it has none."""
    data = dataset(chain)
    return [*data] if data.columns is None else data.columns


def encoded(value: Any) -> Any:
    """Rows or columns as JSON: type, shape and elements of each array."""
    if isinstance(value, dict):
        return {n: encoded(np.asarray(a)) for n, a in value.items()}
    if isinstance(value, list):
        return [encoded(part) for part in value]
    kind = "string" if value.dtype.kind == "U" else str(value.dtype)
    return [kind, list(value.shape), value.ravel().tolist()]


def outcome(chain: Chain) -> Any:
    """The columns or rows, with the fitted steps, or the error; a mapping in it is shown as in a page."""
    try:
        return {"data": encoded(made(chain)), "steps": dataset(chain).preprocessing}
    except TrainwebError as caught:
        return {"error": type(caught).__name__, "message": re.sub(r" is \{.*\};", " is Object;", str(caught))}
