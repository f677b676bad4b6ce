/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Kind } from "./kinds.js";

export const AN_ARRAY_OF_FINITE_NUMBERS: Kind = {"kind": "array", "expected": "an array of finite numbers"};
export const AN_INTEGER: Kind = {"kind": "integer", "expected": "an integer"};
export const AN_INTEGER_AT_LEAST_0: Kind = {"kind": "integer", "expected": "an integer >= 0", "least": 0};
export const AN_INTEGER_AT_LEAST_0_AND_AT_MOST_100: Kind = {"kind": "integer", "expected": "an integer >= 0 and <= 100", "least": 0, "most": 100};
export const AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991: Kind = {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991};
export const AN_INTEGER_AT_LEAST_1: Kind = {"kind": "integer", "expected": "an integer >= 1", "least": 1};
export const AN_INTEGER_AT_LEAST_10_AND_AT_MOST_100000: Kind = {"kind": "integer", "expected": "an integer >= 10 and <= 100000", "least": 10, "most": 100000};
export const AN_INTEGER_AT_LEAST_1_AND_AT_MOST_2147483647: Kind = {"kind": "integer", "expected": "an integer >= 1 and <= 2147483647", "least": 1, "most": 2147483647};
export const AN_INTEGER_AT_LEAST_MINUS_2147483648_AND_AT_MOST_2147483647: Kind = {"kind": "integer", "expected": "an integer >= -2147483648 and <= 2147483647", "least": -2147483648, "most": 2147483647};
export const A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS: Kind = {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": false};
export const A_LIST_OF_NAMES_OR_REGULAR_EXPRESSIONS_MAYBE_EMPTY: Kind = {"kind": "names", "expected": "a list of names or regular expressions", "mayBeEmpty": true};
export const A_NUMBER_AT_LEAST_0: Kind = {"kind": "number", "expected": "a number at least 0", "least": 0};
export const A_NUMBER_AT_LEAST_0_AND_AT_MOST_1: Kind = {"kind": "number", "expected": "a number at least 0 and at most 1", "least": 0, "most": 1};
export const A_NUMBER_AT_LEAST_0_AND_LESS_THAN_0_POINT_5: Kind = {"kind": "number", "expected": "a number at least 0 and less than 0.5", "least": 0, "below": 0.5};
export const A_NUMBER_AT_LEAST_0_AND_LESS_THAN_1: Kind = {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1};
export const A_NUMBER_AT_LEAST_1E_MINUS_18: Kind = {"kind": "number", "expected": "a number at least 1e-18", "least": 1e-18};
export const A_NUMBER_AT_LEAST_MINUS_1_AND_AT_MOST_1: Kind = {"kind": "number", "expected": "a number at least -1 and at most 1", "least": -1, "most": 1};
export const A_NUMBER_GREATER_THAN_0: Kind = {"kind": "number", "expected": "a number greater than 0", "above": 0};
export const A_NUMBER_GREATER_THAN_0_AND_AT_MOST_1: Kind = {"kind": "number", "expected": "a number greater than 0 and at most 1", "above": 0, "most": 1};
export const A_NUMBER_GREATER_THAN_0_AND_LESS_THAN_1: Kind = {"kind": "number", "expected": "a number greater than 0 and less than 1", "above": 0, "below": 1};
export const A_NUMBER_LESS_THAN_0: Kind = {"kind": "number", "expected": "a number less than 0", "below": 0};
export const ONE_OF_0_OR_1: Kind = {"kind": "choice", "expected": "0 or 1", "options": [0, 1]};
export const ONE_OF_DEFAULT_OR_GAUSSIAN: Kind = {"kind": "choice", "expected": "default or gaussian", "options": ["default", "gaussian"]};
export const ONE_OF_KEEP_DROP_OR_PAD: Kind = {"kind": "choice", "expected": "keep, drop or pad", "options": ["keep", "drop", "pad"]};
export const ONE_OF_MACRO_MICRO_WEIGHTED_OR_NONE: Kind = {"kind": "choice", "expected": "macro, micro, weighted or none", "options": ["macro", "micro", "weighted", "none"]};
export const ONE_OF_MACRO_OR_NONE: Kind = {"kind": "choice", "expected": "macro or none", "options": ["macro", "none"]};
export const ONE_OF_MEAN_SUM_NONE_OR_BATCHMEAN: Kind = {"kind": "choice", "expected": "mean, sum, none or batchmean", "options": ["mean", "sum", "none", "batchmean"]};
export const ONE_OF_MEAN_SUM_OR_NONE: Kind = {"kind": "choice", "expected": "mean, sum or none", "options": ["mean", "sum", "none"]};
export const ONE_OF_MIN_OR_MAX: Kind = {"kind": "choice", "expected": "min or max", "options": ["min", "max"]};
export const ONE_OF_STOP_SKIP_OR_RESTORE: Kind = {"kind": "choice", "expected": "stop, skip or restore", "options": ["stop", "skip", "restore"]};
export const ONE_OF_TRAIN_OR_AS_EXPORTED: Kind = {"kind": "choice", "expected": "train or as_exported", "options": ["train", "as_exported"]};
export const SIZES_BY_THE_NAMES_OF_DIMENSIONS_EACH_AN_INTEGER_AT_LEAST_1: Kind = {"kind": "sizes", "expected": "sizes by the names of dimensions, each an integer >= 1"};
export const THREE_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1: Kind = {"kind": "several", "expected": "three numbers, each at least 0 and less than 1", "count": 3, "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}};
export const TRUE_OR_FALSE: Kind = {"kind": "flag", "expected": "true or false"};
export const TWO_NUMBERS_EACH_AT_LEAST_0_AND_LESS_THAN_1: Kind = {"kind": "several", "expected": "two numbers, each at least 0 and less than 1", "count": 2, "of": {"kind": "number", "expected": "a number at least 0 and less than 1", "least": 0, "below": 1}};
