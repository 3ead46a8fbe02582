//! Blocks, constructs, merged values, and calls.

use spirv::Op;

use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::all;
use crate::shader::tests::samples::breaks;
use crate::shader::tests::samples::kernel;
use crate::shader::tests::samples::pass;
use crate::shader::tests::samples::plain;
use crate::shader::tests::samples::says;
use crate::shader::tests::samples::whole;

/// A kernel with `body`, in which `%c` is a condition, and which stores `%x`.
fn body(text: &str) -> String {
    plain(&format!("%c = OpULessThan %bool %x %7\n{text}\n%y = OpIAdd %uint %x %x"))
}

const IF: &str = "OpSelectionMerge %end 0
     OpBranchConditional %c %then %end
     %then = OpLabel
     OpBranch %end
     %end = OpLabel";

const LOOP: &str = "OpBranch %head
     %head = OpLabel
     %i = OpPhi %uint %0 %start %j %next
     OpLoopMerge %end %next 0
     OpBranch %test
     %test = OpLabel
     %d = OpULessThan %bool %i %7
     OpBranchConditional %d %next %end
     %next = OpLabel
     %j = OpIAdd %uint %i %1
     OpBranch %head
     %end = OpLabel";

const SWITCH: &str = "OpSelectionMerge %end 0
     OpSwitch %x %other 1 %one 2 %two
     %one = OpLabel
     OpBranch %two
     %two = OpLabel
     OpBranch %end
     %other = OpLabel
     OpBranch %end
     %end = OpLabel";

#[test]
fn a_function_is_made_of_whole_blocks() {
    breaks(
        &body(IF),
        &[
            ("%then = OpLabel", "", "it stands outside of blocks"),
            ("%then = OpLabel", "%then = OpLabel 1", "too few or too many operands"),
            ("OpBranch %end\n", "", "the block before it does not end"),
            ("OpReturn", "", "the block does not end"),
            (
                "OpSelectionMerge %end 0",
                "OpSelectionMerge %end 0\n%z = OpIAdd %uint %x %x",
                "no branch follows it",
            ),
            (
                "OpSelectionMerge %end 0",
                "OpSelectionMerge %end 0\nOpSelectionMerge %end 0",
                "no branch follows it",
            ),
            ("OpSelectionMerge %end 0", "OpSelectionMerge %end 4", "its selection control is not offered"),
            ("OpSelectionMerge %end 0", "OpSelectionMerge %end 0 0", "too few or too many operands"),
            (
                "OpSelectionMerge %end 0",
                "OpSelectionMerge %uint 0",
                "is no block of this function that may be branched to",
            ),
            ("OpSelectionMerge %end 0", "OpLoopMerge %end %then 3", "its loop control is not offered"),
            ("OpBranch %end\n", "OpBranch %end 1\n", "too few or too many operands"),
            ("OpBranch %end\n", "OpBranch %main\n", "is no block of this function that may be branched to"),
            (
                "OpBranchConditional %c %then %end",
                "OpBranchConditional %c %then",
                "too few or too many operands",
            ),
            (
                "OpBranchConditional %c %then %end",
                "OpBranchConditional %c %then %end 1",
                "too few or too many operands",
            ),
            (
                "OpBranchConditional %c %then %end",
                "OpBranchConditional %x %then %end",
                "its condition is not a boolean",
            ),
            (
                "OpBranchConditional %c %then %end",
                "OpReturn",
                "no such branch may follow a merge instruction",
            ),
            (
                "OpBranchConditional %c %then %end",
                "OpBranch %then",
                "no such branch may follow a merge instruction",
            ),
            ("OpReturn", "OpReturn 1", "too few or too many operands"),
            ("OpReturn", "OpReturnValue %x", "it does not return what its function does"),
            ("OpReturn", "OpKill", "the block does not end"),
            ("OpFunctionEnd", "OpFunctionEnd 1", "too few or too many operands"),
        ],
    );
    assert!(pass(&body(&IF.replace("%end 0\n", "%end 2\n"))).is_ok());
    let weighed = pass(&body(&IF.replace("%then %end\n", "%then %end 3 1\n"))).unwrap();
    assert_eq!(all(&weighed.words, Op::BranchConditional)[0].len(), 3, "weights are left out");
    let empty = body(IF);
    let (head, _) = empty.split_once("%start = OpLabel").unwrap();
    says(&format!("{head}OpFunctionEnd"), "it has no body");
}

#[test]
fn a_branch_goes_two_ways_from_version_1_6_on() {
    let text =
        body(&IF.replace("%then %end\n", "%end %end\n").replace("%then = OpLabel\n     OpBranch %end\n", ""))
            .replace("%id %groups\n", "%id %groups %o\n");
    let old = text.replace("%id %groups %o\n", "%id %groups\n");
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    assert!(whole(&assemble(3, &old), &wish).is_ok(), "{:?}", whole(&assemble(3, &old), &wish));
    assert!(whole(&assemble(5, &text), &wish).is_ok());
    let error = whole(&assemble(6, &text), &wish).unwrap_err().to_string();
    assert!(error.contains("the same block either way"), "{error}");
    let two = body(IF).replace("%id %groups\n", "%id %groups %o\n");
    assert!(whole(&assemble(6, &two), &wish).is_ok());
}

#[test]
fn a_loop_has_one_head_one_end_and_one_way_back() {
    assert!(pass(&body(&LOOP.replace("%next 0", "%next 2"))).is_ok());
    breaks(
        &body(LOOP),
        &[
            ("OpLoopMerge %end %next 0", "OpLoopMerge %end %end 0", "its continue target is its merge block"),
            ("OpLoopMerge %end %next 0", "OpLoopMerge %end %next", "too few or too many operands"),
            ("OpLoopMerge %end %next 0", "OpLoopMerge %head %next 0", "its merge block stands before it"),
            (
                "OpLoopMerge %end %next 0",
                "OpLoopMerge %end %start 0",
                "is no block of this function that may be branched to",
            ),
            (
                "OpLoopMerge %end %next 0\n     OpBranch %test",
                "OpLoopMerge %end %next 0\n     OpSwitch %x %test",
                "no such branch may follow a merge instruction",
            ),
            ("OpLoopMerge %end %next 0", "", "it is not structured"),
            ("OpBranch %head\n     %end", "OpReturn\n     %end", "does not lead back to the header"),
            ("OpBranch %head\n     %end", "OpUnreachable\n     %end", "does not lead back to the header"),
            ("OpBranch %head\n     %end", "OpBranch %next\n     %end", "branches into another construct"),
            (
                "OpBranchConditional %d %next %end",
                "OpBranchConditional %d %next %head",
                "branches into another construct",
            ),
            ("%0 %start %j %next", "%0 %start", "each block that leads here once"),
            ("%0 %start %j %next", "%0 %start %j %next %j %next", "each block that leads here once"),
            ("%0 %start %j %next", "%0 %start %j %test", "is no value that is known here"),
            ("%0 %start %j %next", "%0 %start %j", "a value stands without its block"),
            ("%0 %start %j %next", "%0 %start %j %uint", "is no block of its function"),
            ("%0 %start %j %next", "%true %start %j %next", "has a type other than the result"),
            ("%0 %start %j %next", "%j %start %j %next", "is no value that is known here"),
            (
                "%i = OpPhi",
                "%k = OpIAdd %uint %x %x\n%i = OpPhi",
                "it must stand at the beginning of its block",
            ),
        ],
    );
    says(
        &body(&LOOP.replace(
            "OpBranch %head\n     %head",
            "OpBranch %before\n     %before = OpLabel\n     OpBranch %head\n     %head",
        )),
        "each block that leads here once",
    );
    // The head may be the whole loop.
    let whole = "OpBranch %head\n%head = OpLabel\n%i = OpPhi %uint %0 %start %j %head\n%j = OpIAdd %uint %i %1\n%d = OpULessThan %bool %j %7\nOpLoopMerge %end %head 0\nOpBranchConditional %d %head %end\n%end = OpLabel";
    breaks(
        &body(whole),
        &[("OpBranchConditional %d %head %end", "OpBranch %end", "branches into another construct")],
    );
    // A loop may leave from the middle of its continue construct only where it also goes back.
    let back = LOOP.replace("OpBranch %head\n     %end", "OpBranchConditional %c %head %end\n     %end");
    breaks(
        &body(&back),
        &[("OpBranchConditional %c %head %end", "OpBranch %end", "branches into another construct")],
    );
    // Twice back to the head.
    let twice = LOOP.replace(
        "OpBranch %head\n     %end",
        "OpSelectionMerge %m 0\nOpBranchConditional %c %head %m\n%m = OpLabel\nOpBranch %head\n     %end",
    );
    says(&body(&twice), "a loop is closed twice, or from inside another construct");
}

#[test]
fn an_inner_construct_leaves_only_to_the_innermost_loop_or_switch() {
    let nested = LOOP.replace(
        "OpBranchConditional %d %next %end",
        "OpSelectionMerge %after 0\nOpBranchConditional %d %in %after\n%in = OpLabel\nOpBranch %GO\n%after = OpLabel\nOpBranch %next",
    );
    for (go, fits) in [("after", true), ("next", true), ("end", true), ("head", false), ("test", false)] {
        let result = pass(&body(&nested.replace("%GO", &format!("%{go}"))));
        assert_eq!(result.is_ok(), fits, "{go}: {:?}", result.map(|_| ()));
    }
    // From a selection in a selection only the inner one's end is near.
    let deep = "OpSelectionMerge %end 0
         OpBranchConditional %c %a %end
         %a = OpLabel
         OpSelectionMerge %m 0
         OpBranchConditional %c %b %m
         %b = OpLabel
         OpBranch %GO
         %m = OpLabel
         OpBranch %end
         %end = OpLabel";
    assert!(pass(&body(&deep.replace("%GO", "%m"))).is_ok());
    says(&body(&deep.replace("%GO", "%end")), "branches into another construct");
    // A selection in a case leaves its switch; one in an inner switch does not.
    let case = |go: &str| {
        SWITCH.replace("%one = OpLabel\n     OpBranch %two", &format!("%one = OpLabel\nOpSelectionMerge %m 0\nOpBranchConditional %c %b %m\n%b = OpLabel\nOpBranch %{go}\n%m = OpLabel\nOpBranch %two"))
    };
    assert!(pass(&body(&case("end"))).is_ok());
    says(&body(&case("two")), "branches into another construct");
    let inner = |go: &str| {
        SWITCH.replace("%one = OpLabel\n     OpBranch %two", &format!("%one = OpLabel\nOpSelectionMerge %m 0\nOpSwitch %x %m 1 %b\n%b = OpLabel\nOpBranch %{go}\n%m = OpLabel\nOpBranch %two"))
    };
    assert!(pass(&body(&inner("m"))).is_ok());
    says(&body(&inner("end")), "branches into another construct");
    // A switch in a loop may go on with the loop.
    let within = |go: &str| {
        LOOP.replace("OpBranchConditional %d %next %end", &format!("OpSelectionMerge %m 0\nOpSwitch %x %m 1 %b\n%b = OpLabel\nOpBranch %{go}\n%m = OpLabel\nOpBranchConditional %d %next %end"))
    };
    for go in ["m", "next", "end"] {
        assert!(pass(&body(&within(go))).is_ok(), "{go}");
    }
    says(&body(&within("head")), "branches into another construct");
    // Out of an inner loop there is no way to the outer one's blocks.
    let loops = |go: &str| {
        LOOP.replace("OpBranchConditional %d %next %end", &format!("OpBranch %h\n%h = OpLabel\nOpLoopMerge %e %n 0\nOpBranchConditional %d %t %e\n%t = OpLabel\nOpBranch %{go}\n%n = OpLabel\nOpBranch %h\n%e = OpLabel\nOpBranchConditional %d %next %end"))
    };
    assert!(pass(&body(&loops("n"))).is_ok(), "{:?}", pass(&body(&loops("n"))));
    assert!(pass(&body(&loops("e"))).is_ok());
    for go in ["next", "end", "head", "h"] {
        says(&body(&loops(go)), "branches into another construct");
    }
    // Nor out of a continue construct, but by its last branch.
    let late = |go: &str| {
        LOOP.replace("%j = OpIAdd %uint %i %1\n     OpBranch %head", &format!("%j = OpIAdd %uint %i %1\nOpSelectionMerge %m 0\nOpBranchConditional %c %b %m\n%b = OpLabel\nOpBranch %{go}\n%m = OpLabel\nOpBranch %head")).replace("%j %next", "%j %m")
    };
    assert!(pass(&body(&late("m"))).is_ok(), "{:?}", pass(&body(&late("m"))));
    says(&body(&late("end")), "branches into another construct");
    says(&body(&late("head")), "closed twice, or from inside another construct");
}

#[test]
fn a_switch_has_cases_that_fall_through_in_order() {
    breaks(
        &body(SWITCH),
        &[
            ("OpSelectionMerge %end 0\n", "", "no merge instruction stands before it"),
            ("OpSwitch %x %other 1 %one 2 %two", "OpSwitch", "it has literals without labels"),
            ("OpSwitch %x %other 1 %one 2 %two", "OpSwitch %x", "it has literals without labels"),
            (
                "OpSwitch %x %other 1 %one 2 %two",
                "OpSwitch %x %other 1 %one 2",
                "it has literals without labels",
            ),
            (
                "OpSwitch %x %other 1 %one 2 %two",
                "OpSwitch %c %other 1 %one 2 %two",
                "its selector is not one integer",
            ),
        ],
    );
    // The default comes first among the targets: from it the first case may be reached, and not the second.
    let from_other = |go: &str| {
        SWITCH
            .replace("%other = OpLabel\n     OpBranch %end", "")
            .replace("%one = OpLabel", &format!("%other = OpLabel\nOpBranch %{go}\n%one = OpLabel"))
    };
    assert!(pass(&body(&from_other("one"))).is_ok(), "{:?}", pass(&body(&from_other("one"))));
    says(&body(&from_other("two")), "branches into another construct");
    // The default may fall into any case that nothing else falls into, and any case into it.
    let apart = SWITCH.replace("%one = OpLabel\n     OpBranch %two", "%one = OpLabel\n     OpBranch %end");
    let into = |case: &str, target: &str| {
        let from = format!("%{case} = OpLabel\n     OpBranch %end");
        assert!(apart.contains(&from));
        apart.replace(&from, &format!("%{case} = OpLabel\n     OpBranch %{target}"))
    };
    for (case, target) in [("other", "one"), ("other", "two"), ("one", "other"), ("two", "other")] {
        assert!(pass(&body(&into(case, target))).is_ok(), "{case} into {target}");
    }
    // Where a case falls into it and it into another, these two follow on each other.
    let both = |first: &str, last: &str| {
        into(first, "other").replace(
            "%other = OpLabel\n     OpBranch %end",
            &format!("%other = OpLabel\n     OpBranch %{last}"),
        )
    };
    assert!(pass(&body(&both("one", "two"))).is_ok(), "{:?}", pass(&body(&both("one", "two"))));
    for (first, last) in [("two", "one"), ("one", "one"), ("two", "two")] {
        says(&body(&both(first, last)), "branches into another construct");
    }
    // Not where a literal names it: then it has its place.
    let named = into("other", "one").replace("2 %two", "2 %two 3 %other");
    says(&body(&named), "branches into another construct");
    // Nor where literals of one stand apart; such a case may fall into the default, and the default into it.
    for (case, target) in [("one", "other"), ("other", "one")] {
        let scattered = into(case, target).replace("2 %two", "2 %two 3 %one");
        assert!(pass(&body(&scattered)).is_ok(), "{case} into {target}");
    }
    says(&body(&both("one", "two").replace("2 %two", "2 %two 3 %one")), "branches into another construct");
    for scattered in ["2 %two 3 %one", "2 %two 3 %other 4 %two"] {
        says(&body(&SWITCH.replace("2 %two", scattered)), "branches into another construct");
    }
    let twice = SWITCH.replace(
        "%one = OpLabel\n     OpBranch %two",
        "%one = OpLabel\nOpSelectionMerge %m 0\nOpBranchConditional %c %b %m\n%b = OpLabel\nOpBranch %two\n%m = OpLabel\nOpBranch %two",
    );
    says(&body(&twice), "branches into another construct");
    // Two cases do not fall into one, and none falls back.
    says(
        &body(
            &SWITCH.replace("%other = OpLabel\n     OpBranch %end", "%other = OpLabel\n     OpBranch %two"),
        ),
        "branches into another construct",
    );
    says(
        &body(&SWITCH.replace("%two = OpLabel\n     OpBranch %end", "%two = OpLabel\n     OpBranch %one")),
        "branches into another construct",
    );
    // A case that two literals name is one case; one may be the end itself.
    for targets in ["%other 1 %one 3 %one 2 %two", "%end 1 %one 2 %two", "%other 1 %one 2 %two 3 %end"] {
        let text = SWITCH.replace("%other 1 %one 2 %two", targets);
        let text = if targets.starts_with("%end") {
            text.replace("%other = OpLabel\n     OpBranch %end\n", "")
        } else {
            text
        };
        assert!(pass(&body(&text)).is_ok(), "{targets}: {:?}", pass(&body(&text)).map(|_| ()));
    }
    // A switch in a block that is never reached may have literals of any width.
    let dead = body(
        "OpBranch %after\n%dead = OpLabel\nOpSelectionMerge %m 0\nOpSwitch %x %m\n%m = OpLabel\nOpBranch %after\n%after = OpLabel",
    );
    assert!(pass(&dead).is_ok(), "left out: {:?}", pass(&dead));
    let kept = body(
        "OpBranch %head\n%head = OpLabel\nOpLoopMerge %end %next 0\nOpBranch %end\n%next = OpLabel\nOpSelectionMerge %m 0\nOpSwitch %x %m\n%m = OpLabel\nOpBranch %head\n%end = OpLabel",
    );
    says(&kept, "it is never reached");
}

#[test]
fn a_switch_has_as_many_cases_as_spirv_allows_and_no_more() {
    const CASES: usize = 16_383;
    let text: Vec<String> = (0..CASES).map(|at| format!("{at} %b{at}")).collect();
    let blocks: String = (0..CASES).map(|at| format!("%b{at} = OpLabel\nOpBranch %m\n")).collect();
    let large = |blocks: &str, more: &str| {
        let cases = text.join(" ");
        body(&format!("OpSelectionMerge %m 0\nOpSwitch %x %m {cases}{more}\n{blocks}%m = OpLabel"))
    };
    assert!(pass(&large(&blocks, "")).is_ok());
    says(&large(&blocks, " 16383 %m"), "it has more than 16383 cases");
    // Of all of them the last may not lead to the first.
    let last = format!("%b{} = OpLabel\nOpBranch %", CASES - 1);
    says(
        &large(&blocks.replace(&format!("{last}m"), &format!("{last}b0")), ""),
        "branches into another construct",
    );
}

#[test]
fn literals_of_a_switch_are_as_wide_as_its_selector() {
    let long = |declared: &str, before: &str, cases: &str| {
        let text = SWITCH.replace("OpSwitch %x %other 1 %one 2 %two", cases);
        kernel(
            "OpCapability Int64",
            "",
            &format!("%ulong = OpTypeInt 64 0\n%long2 = OpTypeVector %ulong 2\n{declared}"),
            &format!("{before}\n{text}\nOpReturn"),
        )
    };
    let cases = "OpSwitch %l %other 1 5 %one 2 0 %two";
    for (declared, before) in [
        ("%l = OpConstant %ulong 1 0", ""),
        ("%l = OpSpecConstant %ulong 1 0", ""),
        ("%l = OpUndef %ulong", ""),
        ("", "%l = OpUConvert %ulong %x"),
    ] {
        let words = pass(&long(declared, before, cases)).unwrap().words;
        let [switch] = all(&words, Op::Switch).try_into().unwrap();
        assert_eq!([switch.len(), switch[2] as usize, switch[3] as usize, switch[5] as usize], [8, 1, 5, 2]);
    }
    let number = "%l = OpConstant %ulong 1 0";
    for cases in ["OpSwitch %l %other 1 %one 2 %two", "OpSwitch %l %other 1 0 %one 2", "OpSwitch %l %other 1"]
    {
        says(&long(number, "", cases), "it has literals without labels");
    }
    says(&long(number, "", "OpSwitch %l %other 1 %one 2 %two 5 5"), "no block of this function");
    says(&body(&SWITCH.replace("1 %one 2 %two", "1 0 %one 2 0 %two")), "no block of this function");
    let pair = "%l = OpConstantNull %long2";
    says(&long(pair, "", "OpSwitch %l %other 1 %one 2 %two"), "its selector is not one integer");
}

#[test]
fn a_selector_that_the_text_calls_long_and_is_not_is_refused() {
    let cases = "OpSwitch %x %other 1 %one 2 %two 3 %two";
    let text = body(&SWITCH.replace("OpSwitch %x %other 1 %one 2 %two", cases));
    let declared = "%ulong = OpTypeInt 64 0\n%float = OpTypeFloat 32";
    let text = text.replace("OpCapability Shader", "OpCapability Shader\nOpCapability Int64");
    let text = text.replace("%float = OpTypeFloat 32", declared);
    // Nothing calls it, so it is left out before anything is judged; it names the type where results have theirs.
    let odd = format!(
        "{text}\n%odd = OpFunction %void 0 %f\n%in = OpLabel\nOpStore %ulong %x\nOpReturn\nOpFunctionEnd"
    );
    let with_labels = |text: &str| {
        let mut words = assemble(3, text);
        let at = words.iter().position(|word| *word == 9 << 16 | Op::Switch as u32).unwrap();
        // So that it names blocks with literals of two words, too.
        words[at + 5] = words[at + 4];
        words
    };
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    assert!(guard(&with_labels(&text), &wish).is_ok());
    let error = guard(&with_labels(&odd), &wish).unwrap_err().to_string();
    assert!(error.contains("its selector is not one integer"), "{error}");
}

#[test]
fn a_block_ends_or_continues_one_construct_only() {
    let deep = "OpSelectionMerge %end 0
         OpBranchConditional %c %a %end
         %a = OpLabel
         OpSelectionMerge %m 0
         OpBranchConditional %c %b %m
         %b = OpLabel
         OpBranch %m
         %m = OpLabel
         OpBranch %end
         %end = OpLabel";
    breaks(
        &body(deep),
        &[("OpSelectionMerge %m 0", "OpSelectionMerge %end 0", "ends or continues another construct")],
    );
    // A loop is continued behind its header.
    let early = LOOP.replace("%next = OpLabel\n     %j = OpIAdd %uint %i %1\n     OpBranch %head\n", "").replace(
        "%head = OpLabel\n     %i = OpPhi %uint %0 %start %j %next",
        "%next = OpLabel\n     OpBranch %head\n     %head = OpLabel\n     %i = OpPhi %uint %0 %start %7 %next",
    );
    says(&body(&early), "or stands before it");
}

#[test]
fn constructs_nest_no_deeper_than_their_limit() {
    let nested = |levels: u32| {
        let open: String = (0..levels)
            .map(|n| {
                format!("OpSelectionMerge %m{n} 0\nOpBranchConditional %c %t{n} %m{n}\n%t{n} = OpLabel\n")
            })
            .collect();
        let close: String = (0..levels).rev().map(|n| format!("OpBranch %m{n}\n%m{n} = OpLabel\n")).collect();
        body(&format!("{open}{close}"))
    };
    assert!(pass(&nested(128)).is_ok());
    says(&nested(129), "constructs nest deeper than 128");
}

#[test]
fn blocks_stand_in_an_order_in_which_values_are_known() {
    let text = "OpSelectionMerge %end 0
         OpBranchConditional %c %then %end
         %inner = OpLabel
         OpBranch %end
         %then = OpLabel
         OpBranch %inner
         %end = OpLabel";
    says(&body(text), "it stands before the block that dominates it");
    // A value of one branch is known in it and not behind it.
    let value = "OpSelectionMerge %end 0
         OpBranchConditional %c %then %else
         %then = OpLabel
         %z = OpIAdd %uint %x %x
         OpBranch %in
         %in = OpLabel
         %w = OpIAdd %uint %z %x
         OpBranch %end
         %else = OpLabel
         OpBranch %end
         %end = OpLabel
         %p = OpPhi %uint %w %in %x %else";
    breaks(
        &body(value),
        &[
            ("%else = OpLabel", "%else = OpLabel\n%v = OpIAdd %uint %z %x", "is no value that is known here"),
            ("%p = OpPhi %uint %w %in %x %else", "%p = OpIAdd %uint %w %x", "is no value that is known here"),
            ("%w %in %x %else", "%x %in %w %else", "is no value that is known here"),
            ("%w %in %x %else", "%w %in", "each block that leads here once"),
        ],
    );
    assert!(pass(&body(&value.replace("%w %in %x %else", "%x %else %w %in"))).is_ok(), "in any order");
}

#[test]
fn small_values_are_not_merged_without_their_capability() {
    let text = |capability: &str| {
        kernel(
            &format!("OpCapability StorageBuffer8BitAccess\n{capability}"),
            "",
            "%byte = OpTypeInt 8 0",
            "%u8 = OpUConvert %byte %x\n%c = OpULessThan %bool %x %7\nOpSelectionMerge %end 0\nOpBranchConditional %c %then %end\n%then = OpLabel\nOpBranch %end\n%end = OpLabel\n%p = OpPhi %byte %u8 %start %u8 %then\nOpReturn",
        )
    };
    assert!(pass(&text("OpCapability Int8")).is_ok());
    says(&text(""), "has a type other than the result");
}

/// A kernel that calls `%g`, which has this type and text.
fn calling(ty: &str, call: &str, function: &str) -> String {
    let text = kernel(
        "",
        "",
        &format!(
            "%gt = OpTypeFunction {ty}\n%other = OpTypeFunction %float\n%pf = OpTypePointer Function %uint\n%pp = OpTypePointer Private %uint\n%own = OpVariable %pp Private\n%pa = OpTypePointer Function %uint3"
        ),
        &format!("%n = OpFunctionCall {call}\nOpReturn"),
    );
    format!("{text}\n{function}\nOpFunctionEnd")
}

#[test]
fn a_call_fits_its_function() {
    let good = calling(
        "%uint %uint",
        "%uint %g %x",
        "%g = OpFunction %uint 0 %gt\n%a = OpFunctionParameter %uint\n%gs = OpLabel\n%b = OpIAdd %uint %a %a\nOpReturnValue %b",
    );
    let shader = pass(&good).unwrap();
    assert_eq!(all(&shader.words, Op::Function).len(), 2);
    let other = good.replace("OpEntryPoint 5 %main", "OpEntryPoint 5 %g").replace("Mode %main", "Mode %g");
    says(&other, "it names no function that takes and returns nothing");
    assert_eq!(all(&shader.words, Op::FunctionParameter).len(), 1);
    let arguments = "its arguments or its result are not those of the function";
    let parameter = "a parameter of the function's type is missing or different";
    breaks(
        &good,
        &[
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %uint %g", arguments),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %uint %g %x %x", arguments),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %uint %g %true", arguments),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %int %g %x", arguments),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %uint %x %x", "is no function"),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %uint", "too few or too many operands"),
            ("OpFunctionCall %uint %g %x", "OpFunctionCall %void %main", "it calls an entry point"),
            (
                "%g = OpFunction %uint 0 %gt",
                "%g = OpFunction %int 0 %gt",
                "its type does not fit what it returns",
            ),
            ("%g = OpFunction %uint 0 %gt", "%g = OpFunction %uint 16 %gt", "its control is not offered"),
            (
                "%g = OpFunction %uint 0 %gt",
                "%g = OpFunction %uint 0 %uint",
                "its type does not fit what it returns",
            ),
            ("%g = OpFunction %uint 0 %gt", "%g = OpFunction %uint 0 %gt 1", "too few or too many operands"),
            ("%a = OpFunctionParameter %uint", "%a = OpFunctionParameter %int", parameter),
            (
                "%a = OpFunctionParameter %uint",
                "%a = OpFunctionParameter %uint\n%aa = OpFunctionParameter %uint",
                "it stands outside of blocks",
            ),
            (
                "%a = OpFunctionParameter %uint",
                "%a = OpFunctionParameter %uint 1",
                "too few or too many operands",
            ),
            ("OpReturnValue %b", "OpReturn", "it does not return what its function does"),
            ("OpReturnValue %b", "OpReturnValue %true", "it does not return what its function does"),
            ("OpReturnValue %b", "OpReturnValue %b 1", "too few or too many operands"),
            ("%g = OpFunction", "OpNop\n%g = OpFunction", "it stands between functions"),
        ],
    );
    assert!(pass(&good.replace("%g = OpFunction %uint 0", "%g = OpFunction %uint 15")).is_ok());
    let lines = good
        .replace("OpDecorate %id", "%file = OpString \"k\"\nOpDecorate %id")
        .replace("%a = OpFunctionParameter", "OpLine %file 1 1\n%a = OpFunctionParameter");
    assert!(pass(&lines).is_ok(), "{:?}", pass(&lines));
    // What a function returns that nothing uses.
    let void = calling("%void", "%void %g", "%g = OpFunction %void 0 %gt\n%gs = OpLabel\nOpReturn");
    breaks(
        &void.replace("%gt = OpTypeFunction %void\n", "").replace("%gt", "%f"),
        &[(
            "%n = OpFunctionCall %void %g",
            "%n = OpFunctionCall %void %g\n%z = OpIAdd %uint %n %n",
            "is no value that is known here",
        )],
    );
}

#[test]
fn a_function_sees_no_values_of_another() {
    let text = calling(
        "%uint",
        "%uint %g",
        "%g = OpFunction %uint 0 %gt\n%gs = OpLabel\n%b = OpIAdd %uint %7 %7\nOpReturnValue %b",
    );
    breaks(
        &text,
        &[
            ("OpIAdd %uint %7 %7", "OpIAdd %uint %x %7", "is no value that is known here"),
            ("%b = OpIAdd %uint %7 %7", "OpBranch %start\n%b = OpLabel", "is no block of this function"),
        ],
    );
}

#[test]
fn pointers_are_handed_on_to_whole_variables_only() {
    let good = calling(
        "%void %pp",
        "%void %g %own",
        "%g = OpFunction %void 0 %gt\n%a = OpFunctionParameter %pp\n%gs = OpLabel\nOpStore %a %7\nOpReturn",
    );
    let good = good
        .replace("%gt = OpTypeFunction %void %pp\n", "")
        .replace("%own = OpVariable", "%gt = OpTypeFunction %void %pp\n%own = OpVariable");
    let shader = pass(&good).unwrap();
    assert_eq!(all(&shader.words, Op::Variable).len(), 2, "what is handed on is used");
    let buffer =
        good.replace("%own = OpVariable", "%ot = OpTypeFunction %void %pword\n%own = OpVariable").replace(
            "%g = OpFunction %void 0 %gt\n%a = OpFunctionParameter %pp",
            "%g = OpFunction %void 0 %ot\n%a = OpFunctionParameter %pword",
        );
    says(&buffer, "this storage class cannot be handed to functions");
    let part = good.replace("%pp = OpTypePointer Private %uint", "%pp = OpTypePointer Private %uint\n%p3 = OpTypePointer Private %uint3\n%v3 = OpVariable %p3 Private").replace("%n = OpFunctionCall %void %g %own", "%q = OpAccessChain %pp %v3 %0\n%n = OpFunctionCall %void %g %q");
    says(&part, "only whole variables can be handed to functions by pointer");
}

#[test]
fn blocks_of_a_later_function_are_checked_as_those_of_the_first() {
    let suffix = |text: &str| {
        ["head", "test", "next", "end", "then", "start", "i", "j", "d", "c", "x"].iter().fold(
            text.to_owned(),
            |text, name| {
                let plain = format!("{text} ").replace('\n', " \n");
                plain.replace(&format!("%{name} "), &format!("%{name}2 "))
            },
        )
    };
    let second = format!(
        "\n%g = OpFunction %void 0 %f
         %start2 = OpLabel
         %x2 = OpIAdd %uint %7 %7
         %c2 = OpULessThan %bool %x2 %7
         OpSelectionMerge %join 0
         OpBranchConditional %c2 %left %right
         %left = OpLabel
         %l = OpIAdd %uint %x2 %1
         OpBranch %join
         %right = OpLabel
         OpBranch %join
         %join = OpLabel
         %p = OpPhi %uint %l %left %x2 %right
         {}
         %after = OpIAdd %uint %p %i2
         OpReturn
         OpFunctionEnd",
        suffix(LOOP).replace("%0 %start2 ", "%0 %join ")
    );
    let good = body(LOOP).replace("OpReturn", "%call = OpFunctionCall %void %g\nOpReturn") + &second;
    let words = pass(&good).unwrap_or_else(|error| panic!("{good}\n{error}")).words;
    assert_eq!((all(&words, Op::Phi).len(), all(&words, Op::Label).len()), (3, 5 + 8));
    breaks(
        &good,
        &[
            (
                "%p = OpPhi %uint %l %left %x2 %right",
                "%p = OpIAdd %uint %l %x2",
                "is no value that is known here",
            ),
            ("%l %left %x2 %right", "%l %left", "each block that leads here once"),
            ("%l %left %x2 %right", "%l %right %x2 %left", "is no value that is known here"),
            ("%l %left %x2 %right", "%l %left %x2 %start", "is no block of its function"),
            ("%l %left %x2 %right", "%l %left %x2 %uint", "is no block of its function"),
            ("%x2 = OpIAdd %uint %7 %7", "%x2 = OpIAdd %uint %x %7", "is no value that is known here"),
            ("%after = OpIAdd %uint %p %i2", "%after = OpIAdd %uint %p %l", "is no value that is known here"),
        ],
    );
}

/// Functions of which each calls the one before `calls` times; the first has `body`.
fn tower(levels: u32, calls: u32, variables: &str, body: &str) -> String {
    let mut text = kernel(
        "",
        "",
        "%pf = OpTypePointer Function %uint\n%n64 = OpConstant %uint 1024\n%a1k = OpTypeArray %uint %n64\n%pa = OpTypePointer Function %a1k",
        &format!("%last = OpFunctionCall %void %f{}\nOpReturn", levels - 1),
    );
    for level in 0..levels {
        text += &format!("\n%f{level} = OpFunction %void 0 %f\n%l{level} = OpLabel\n");
        if level == 0 {
            text += &format!("{variables}\n{body}\n");
        } else {
            for call in 0..calls {
                text += &format!("%k{level}x{call} = OpFunctionCall %void %f{}\n", level - 1);
            }
        }
        text += "OpReturn\nOpFunctionEnd";
    }
    text
}

#[test]
fn what_calls_cost_when_they_are_inlined_is_bounded() {
    assert!(pass(&tower(64, 1, "", "")).is_ok());
    says(&tower(65, 1, "", ""), "65 levels of nested calls, more than 64");
    assert!(pass(&tower(15, 2, "", "")).is_ok());
    says(&tower(18, 2, "", ""), "instructions with all calls inlined, more than 262144");
    let store = "%p = OpAccessChain %pword %o %0 %0\nOpStore %p %7";
    // 2 ^ 13 stores and 2 ^ 13 loads are as many as may be; the kernel has a load of its own.
    assert!(pass(&tower(14, 2, "", store)).is_ok());
    let both = format!("{store}\n%w = OpLoad %uint %p");
    says(&tower(14, 2, "", &both), "16385 accesses to memory with all calls inlined, more than 16384");
    assert!(pass(&tower(13, 2, "", &both)).is_ok());
    let atomic = "%p = OpAccessChain %pword %o %0 %0\n%w = OpAtomicIAdd %uint %p %1 %0 %7";
    says(&tower(15, 2, "", atomic), "accesses to memory with all calls inlined");
    // 4 KiB of local variables, 16 times.
    let local = "%local = OpVariable %pa Function";
    assert!(pass(&tower(5, 2, local, "")).is_ok());
    says(&tower(6, 2, local, ""), "131072 bytes in local variables with all calls inlined, more than 65536");
}

#[test]
fn what_is_never_called_is_left_out_and_cost_nothing() {
    let text = plain("%y = OpIAdd %uint %x %x").replace("%main = OpFunction", "%dead = OpFunction %void 0 %f\n%dl = OpLabel\n%dx = OpFNegate %float %dead1\nOpReturn\nOpFunctionEnd\n%main = OpFunction").replace("%true = OpConstantTrue", "%dead1 = OpConstant %float 1\n%true = OpConstantTrue").replace("%void = OpTypeVoid", "OpDecorate %dx NoContraction\n%void = OpTypeVoid");
    let words = pass(&text).unwrap().words;
    assert_eq!(all(&words, Op::Function).len(), 1);
    assert!(all(&words, Op::FNegate).is_empty());
    assert!(
        all(&words, Op::Decorate).iter().all(|d| d[1] != spirv::Decoration::NoContraction as u32),
        "nor decorations of it"
    );
    let many = |count: u32| {
        plain("%y = OpIAdd %uint %x %x")
            + &(0..count)
                .map(|n| format!("\n%f{n} = OpFunction %void 0 %f\n%l{n} = OpLabel\nOpReturn\nOpFunctionEnd"))
                .collect::<String>()
    };
    assert!(pass(&many(4095)).is_ok());
    says(&many(4096), "there are more than 4096");
}
