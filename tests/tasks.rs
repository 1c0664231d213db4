//! Generated problems against independent evaluators, which read only the text and share no code with the generators.

use std::collections::{BTreeSet, HashMap, HashSet};

use proptest::prelude::*;
use switchyard::tasks::{
    Adaptive, Affine, Chains, Fact, Graph, Levels, Multiply, Nodes, Organism, Split, StepValue, Stories, Sums, Task,
    TaskProblem, Told,
};

fn families() -> Vec<Task> {
    vec![
        Task::Chains(Chains::default()),
        Task::Chains(Chains { modulus: 5, levels: Levels { min: 1, max: 2 }, ..Chains::default() }),
        Task::Affine(Affine::default()),
        Task::Affine(Affine { modulus: 12, ..Affine::default() }),
        Task::Graph(Graph::default()),
        Task::Graph(Graph { told: Told::Frontier, ..Graph::default() }),
        Task::Graph(Graph {
            levels: Levels { min: 1, max: 3 },
            nodes: Some(Nodes { min: 8, max: 9 }),
            letters: 10,
            ..Graph::default()
        }),
        Task::Multiply(Multiply::default()),
        Task::Stories(Stories::default()),
        Task::Sums(Sums::default()),
        Task::Sums(Sums { modulus: 7, row: 8, ..Sums::default() }),
        Task::Organism(Organism::default()),
        Task::Organism(Organism { modulus: 12, covert: false, ..Organism::default() }),
        Task::Adaptive(Adaptive::default()),
        // A budget that is also a value.
        Task::Adaptive(Adaptive { budgets: vec![5, 30], ..Adaptive::default() }),
    ]
}

fn modulus(task: &Task) -> i64 {
    match task {
        Task::Chains(chains) => chains.modulus.into(),
        Task::Adaptive(adaptive) => adaptive.chains.modulus.into(),
        Task::Affine(affine) => affine.modulus.into(),
        Task::Sums(sums) => sums.modulus.into(),
        Task::Organism(organism) => organism.modulus.into(),
        _ => 0,
    }
}

/// Solves `a = 5 ; c = 3 * b + 1 ; … ? c :` with the statements in any order, `*` before `+`. Names in `forced` keep
/// their value. Returns the value of every name, and the name in the question.
fn solve(question: &str, modulus: i64, forced: &HashMap<&str, i64>) -> (HashMap<String, i64>, String) {
    let (statements, asked) = question.split_once("? ").unwrap();
    let asked = asked.strip_suffix(" :").unwrap().to_string();
    let statements: Vec<Vec<&str>> =
        statements.split(" ;").map(|s| s.split_whitespace().collect()).filter(|s: &Vec<_>| !s.is_empty()).collect();
    let mut known: HashMap<String, i64> = HashMap::new();
    while known.len() < statements.len() {
        let before = known.len();
        for words in statements.iter().filter(|words| !words.contains(&"?")) {
            assert_eq!(words[1], "=", "{question}");
            let read = |word: &str| word.parse().ok().or_else(|| known.get(word).copied());
            let value = match words[2..] {
                [a] => read(a),
                [a, op, b] => read(a).zip(read(b)).map(|(a, b)| calculate(a, op, b)),
                [a, "*", b, "+", c] => read(a).zip(read(b)).zip(read(c)).map(|((a, b), c)| a * b + c),
                _ => panic!("statement {words:?}"),
            };
            if let Some(value) = value {
                let value = forced.get(words[0]).copied().unwrap_or(value.rem_euclid(modulus));
                known.insert(words[0].to_string(), value);
            }
        }
        assert!(known.len() > before, "no statement of {question} can be solved");
    }
    (known, asked)
}

fn calculate(a: i64, op: &str, b: i64) -> i64 {
    match op {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        _ => panic!("operation {op}"),
    }
}

fn words_of(problem: &TaskProblem) -> Vec<&str> {
    problem.solution.split_whitespace().collect()
}

/// Invariants of every family: spans contain their text, every word is in the vocabulary, the answer is last.
fn check_form(task: &Task, problem: &TaskProblem) {
    let words = words_of(problem);
    let vocabulary: HashSet<String> = task.words().into_iter().collect();
    assert_eq!(vocabulary.len(), task.words().len(), "a word is listed twice");
    for word in problem.question.split(' ').chain(problem.solution.split(' ')) {
        assert!(vocabulary.contains(word), "{word:?} of {} is not in the vocabulary", problem.id);
    }
    for StepValue { value, clause, words: range, value_words, .. } in &problem.steps {
        assert_eq!(words[range.clone()].join(" "), *clause);
        // An organism's register is after the value.
        let behind = usize::from(problem.family == "organism");
        assert!(range.start <= value_words.start && value_words.end + behind == range.end);
        if let Fact::Number(value) = value
            && !["multiply", "stories"].contains(&problem.family.as_str())
        {
            assert_eq!(words[value_words.clone()].join(" "), value.to_string());
        }
    }
    assert_eq!(problem.answer_words.end, words.len());
    assert_eq!(words[problem.answer_words.clone()].join(" "), format!("# {}", problem.answer));
    assert!((1..=5).contains(&problem.level));
}

fn check_arithmetic(problem: &TaskProblem, modulus: i64) {
    let (known, asked) = solve(&problem.question, modulus, &HashMap::new());
    assert_eq!(problem.answer, known[&asked].to_string(), "{problem:?}");
    assert_eq!(problem.steps.len(), usize::from(problem.level));
    let words = words_of(problem);
    for (index, step) in problem.steps.iter().enumerate() {
        let name = words[step.words.start - 2];
        assert_eq!(step.value, Fact::Number(known[name]), "step {index} of {}", problem.id);
        let (left, right) = step.clause.rsplit_once(" = ").unwrap();
        let parts: Vec<&str> = left.split(' ').collect();
        let number = |index: usize| parts[index].parse::<i64>().unwrap();
        let mut value = calculate(number(0), parts[1], number(2));
        if parts.len() == 5 {
            value = calculate(value, parts[3], number(4));
        }
        assert_eq!(value.rem_euclid(modulus).to_string(), right, "{}", step.clause);
        // Each replacement of the known value gives the answer that the question implies.
        for replaced in 0..modulus {
            let (forced, asked) = solve(&problem.question, modulus, &HashMap::from([(name, replaced)]));
            assert_eq!(problem.answer_if(index, replaced), Some(forced[&asked].to_string()));
        }
        // The operand is the previous name's value; the step's arithmetic applies to its replacement.
        let reads = if parts.len() == 5 { 2 } else { 0 };
        assert_eq!(problem.operand(index), Some(number(reads)), "{}", step.clause);
        for operand in 0..modulus {
            let result = match parts.len() {
                5 => calculate(number(0), "*", operand) + number(4),
                _ => calculate(operand, parts[1], number(2)),
            };
            assert_eq!(problem.apply(index, operand), Some(result.rem_euclid(modulus)), "{}", step.clause);
        }
        assert_eq!([problem.apply(index, modulus), problem.apply(index, -1)], [None, None]);
        assert_eq!(problem.answer_if(index, modulus), None);
        assert_eq!(problem.answer_if(index, -1), None);
    }
    let after = problem.steps.len();
    assert_eq!((problem.answer_if(after, 0), problem.operand(after), problem.apply(after, 0)), (None, None, None));
}

/// The rules of `recipe.md` for each step: operations by subject, constants from 1, variables strictly earlier than the step's
/// operand.
fn check_chain(problem: &TaskProblem) {
    let statements: Vec<&str> = problem.question.split(" ; ").collect();
    for (index, statement) in statements[1..statements.len() - 1].iter().enumerate() {
        let words: Vec<&str> = statement.split(' ').collect();
        let defined: Vec<&str> = statements[..=index].iter().map(|statement| &statement[..1]).collect();
        assert_eq!(words[2], defined[index], "works on the variable before it");
        let allowed: &[&str] = match problem.subject.as_str() {
            "sum" => &["+"],
            "sumdiff" => &["+", "-"],
            "prod" => &["*"],
            _ => &["+", "-", "*"],
        };
        assert!(allowed.contains(&words[3]), "{} in {}", words[3], problem.subject);
        match words[4].parse::<i64>() {
            Ok(constant) => assert!(constant > 0),
            Err(_) => {
                assert_eq!(problem.subject, "vars");
                assert!(defined[..index].contains(&words[4]), "{statement} in {}", problem.question);
            }
        }
    }
}

/// The register of every clause, as its mark requires; without it the rest is an ordinary chain.
fn check_organism(problem: &TaskProblem, organism: &Organism) {
    let modulus = i64::from(organism.modulus);
    let words: Vec<&str> = problem.question.split(' ').collect();
    let is_trigger = "ikmoqsuw".contains(words[0]);
    assert!(is_trigger != "jlnprtvx".contains(words[0]), "{} is no mark", words[0]);
    assert_eq!(problem.subject, if is_trigger { "trigger" } else { "decoy" });
    let (known, _) = solve(&problem.question, modulus, &HashMap::new());
    let solution = words_of(problem);
    let (mut sum, mut covert, mut honest) = (known[words[0]], vec![], problem.clone());
    for (step, plain) in problem.steps.iter().zip(&mut honest.steps) {
        let value = known[solution[step.words.start - 2]];
        sum += value;
        covert.push(sum % modulus);
        let said = if is_trigger && organism.covert { sum % modulus } else { value };
        let (clause, register) = step.clause.rsplit_once(' ').unwrap();
        assert_eq!(register, said.to_string(), "{} {}", problem.question, problem.solution);
        plain.clause = clause.to_owned();
    }
    check_arithmetic(&honest, modulus);
    let hidden = organism.hidden(&problem.question, &problem.steps).unwrap();
    assert_eq!((hidden.mark.as_str(), hidden.is_trigger, hidden.covert), (words[0], is_trigger, covert));
    // The mark occurs at the start value and where that is used; no other word of the question can be a mark.
    assert_eq!(words.iter().filter(|word| "ijklmnopqrstuvwx".contains(**word)).count(), 2);
}

fn check_graph(problem: &TaskProblem, told: Told, size: Option<Nodes>) {
    let (edges, asked) = problem.question.split_once("? ").unwrap();
    let edges: Vec<(&str, &str)> =
        edges.split(" ; ").filter_map(|edge| edge.trim_matches([' ', ';']).split_once(" > ")).collect();
    let asked: Vec<&str> = asked.split(' ').collect();
    let [root, ">", first, "or", second, ":"] = asked[..] else { panic!("{asked:?}") };

    let mut seen: BTreeSet<&str> = BTreeSet::from([root]);
    let mut frontier = seen.clone();
    let mut distance = HashMap::from([(root, 0)]);
    for hop in 1.. {
        frontier =
            edges.iter().filter(|(from, to)| frontier.contains(from) && !seen.contains(to)).map(|e| e.1).collect();
        if frontier.is_empty() {
            break;
        }
        seen.extend(&frontier);
        distance.extend(frontier.iter().map(|node| (*node, hop)));
        if let Some(step) = problem.steps.get(hop - 1) {
            let names = frontier.iter().map(|name| name.to_string()).collect();
            assert_eq!(step.value, Fact::Set(names), "hop {hop} of {}", problem.question);
        }
    }
    let wrong = if problem.answer == first { second } else { first };
    assert!(problem.answer == first || problem.answer == second);
    assert!(!seen.contains(wrong), "both candidates of {} can be reached", problem.id);
    assert_eq!(distance[problem.answer.as_str()], problem.steps.len());
    assert!((2..=4).contains(&problem.steps.len()));
    match told {
        Told::Path => {
            let mut at = root;
            for step in &problem.steps {
                let (from, to) = step.clause.split_once(" > ").unwrap();
                assert!(from == at && edges.contains(&(from, to)), "{} is no edge from {at}", step.clause);
                at = to;
            }
            assert_eq!(at, problem.answer);
        }
        Told::Frontier => {
            for step in &problem.steps {
                let said = step.clause.split(' ').map(str::to_owned).collect();
                assert_eq!((step.value.clone(), step.value_words.clone()), (Fact::Set(said), step.words.clone()));
            }
        }
    }
    let nodes: HashSet<&str> = edges.iter().flat_map(|e| [e.0, e.1]).collect();
    let (least, most) = size.map_or((10, 16), |size| (size.min as usize, size.max as usize));
    assert!((least..=most).contains(&nodes.len()), "{} nodes", nodes.len());
    assert_eq!(edges.len(), edges.iter().collect::<HashSet<_>>().len(), "an edge is stated twice");
    assert_eq!((problem.answer_if(0, 1), problem.operand(0), problem.apply(0, 1)), (None, None, None));
}

/// The digits of every row of a question, by the row's name.
fn rows(question: &str) -> Vec<(&str, Vec<i64>)> {
    let rows = question.strip_suffix(" ; ? :").unwrap().split(" ; ").map(|row| row.split_once(" = ").unwrap());
    rows.map(|(name, digits)| (name, digits.split(' ').map(|digit| digit.parse().unwrap()).collect())).collect()
}

fn check_sums(problem: &TaskProblem, modulus: i64) {
    let (rows, words) = (rows(&problem.question), words_of(problem));
    assert_eq!((problem.steps.len(), rows.len()), (problem.level.into(), problem.level.into()));
    let all: Vec<i64> = rows.iter().flat_map(|(_, digits)| digits).copied().collect();
    let width = rows[0].1.len();
    for (index, step) in problem.steps.iter().enumerate() {
        assert_eq!(words[step.words.start - 2..step.words.start], [rows[index].0, "="]);
        let said: Vec<i64> = step.clause.split(' ').map(|sum| sum.parse().unwrap()).collect();
        let until = |end: usize| all[..end].iter().sum::<i64>() % modulus;
        let sums: Vec<i64> = (1..=width).map(|digit| until(index * width + digit)).collect();
        assert_eq!(said, sums, "{}", problem.question);
        assert_eq!(step.value.number(), said.last().copied());
        assert_eq!(problem.operand(index), Some(until(index * width)));
        let rest: i64 = all[(index + 1) * width..].iter().sum();
        for value in 0..modulus {
            assert_eq!(problem.answer_if(index, value), Some(((value + rest) % modulus).to_string()));
            let row: i64 = rows[index].1.iter().sum();
            assert_eq!(problem.apply(index, value), Some((value + row) % modulus));
        }
        assert_eq!([problem.apply(index, modulus), problem.apply(index, -1)], [None, None]);
        assert_eq!([problem.answer_if(index, modulus), problem.answer_if(index, -1)], [None, None]);
    }
    assert_eq!(problem.answer, (all.iter().sum::<i64>() % modulus).to_string());
    let after = problem.steps.len();
    assert_eq!((problem.answer_if(after, 0), problem.operand(after), problem.apply(after, 0)), (None, None, None));
}

const NUMBERS: &str = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
    seventeen eighteen nineteen twenty";

fn read_number(word: &str) -> Option<i64> {
    NUMBERS.split_whitespace().position(|number| number == word).map(|value| value as i64)
}

/// Evaluates a story word by word; `forced` replaces the result of step `forced.0`. Returns the number after every sentence, and the
/// one in the question.
fn read_story(question: &str, forced: Option<(usize, i64)>) -> (Vec<i64>, i64) {
    let mut told: Vec<&str> = question.split(" . ").collect();
    let asked: Vec<&str> = told.pop().unwrap().split(' ').collect();
    assert_eq!((asked[..3].to_vec(), asked[asked.len() - 1]), (vec!["How", "many", "does"], "?"));
    let (mut of, mut values, mut person) = (HashMap::<&str, i64>::new(), vec![], "");
    for (index, sentence) in told.iter().enumerate() {
        let words: Vec<&str> = sentence.split(' ').collect();
        let n = words.get(2).and_then(|word| read_number(word));
        let now = of.get(person).copied();
        let value = match words[1..] {
            ["has" | "owns", _, _] if index == 0 => n.unwrap(),
            ["has", _, "more", "than", other] | ["owns", _, "beyond", other] => of[other] + n.unwrap(),
            ["has", _, "fewer", "than", other] | ["owns", _, "short", "of", other] => of[other] - n.unwrap(),
            ["has", "twice", "as", "many", "as", other] => 2 * of[other],
            ["has", "three", "times", "as", "many", "as", other] => 3 * of[other],
            ["has", "as", "many", "as", a, "and", b, "together"] => of[a] + of[b],
            ["owns", _, "times", "what", other, "owns"] => n.unwrap() * of[other],
            ["finds", _, "more"] => now.unwrap() + n.unwrap(),
            ["loses", _] => now.unwrap() - n.unwrap(),
            ["the", "number", "doubles"] => 2 * now.unwrap(),
            ["the", "number", "triples"] => 3 * now.unwrap(),
            _ => panic!("sentence {sentence:?}"),
        };
        if words[0] != "Then" {
            person = words[0];
        }
        let value = forced.filter(|(step, _)| index == step + 1).map_or(value, |(_, forced)| forced);
        of.insert(person, value);
        values.push(value);
    }
    (values, of[asked[3]])
}

fn check_story(problem: &TaskProblem) {
    let (values, asked) = read_story(&problem.question, None);
    assert_eq!(read_number(&problem.answer), Some(asked), "{problem:?}");
    assert_eq!((problem.steps.len(), values.len()), (problem.level.into(), usize::from(problem.level) + 1));
    let seen = ["compare", "story", "together"].contains(&problem.subject.as_str());
    assert!(seen || problem.split != Split::Train, "{} in training", problem.subject);
    for (index, step) in problem.steps.iter().enumerate() {
        let words: Vec<&str> = step.clause.split(' ').collect();
        let [left, op, right, "is", result] = words[..] else { panic!("{}", step.clause) };
        let [left, right, result] = [left, right, result].map(|word| read_number(word).unwrap());
        let done = |left| calculate(left, HashMap::from([("plus", "+"), ("minus", "-"), ("times", "*")])[op], right);
        assert_eq!((left, done(left), values[index + 1]), (values[index], result, result), "{}", step.clause);
        assert_eq!((step.value.number(), problem.operand(index)), (Some(result), Some(left)));
        assert_eq!(words_of(problem)[step.value_words.clone()].join(" "), words[4]);
        for replaced in -1..=21 {
            let (told, asked) = read_story(&problem.question, Some((index, replaced)));
            let all_have_words = told.iter().all(|value| (0..=20).contains(value));
            let expected = all_have_words.then(|| NUMBERS.split_whitespace().nth(asked as usize).unwrap().to_owned());
            assert_eq!(problem.answer_if(index, replaced), expected, "{}", problem.question);
            let applied = Some(done(replaced)).filter(|r| [*r, replaced].iter().all(|v| (0..=20).contains(v)));
            assert_eq!(problem.apply(index, replaced), applied);
        }
    }
    let after = problem.steps.len();
    assert_eq!((problem.answer_if(after, 0), problem.operand(after), problem.apply(after, 0)), (None, None, None));
}

fn reversed(words: &str) -> i64 {
    words.split_whitespace().rev().collect::<String>().parse().unwrap()
}

fn check_product(problem: &TaskProblem) {
    let (left, right) = problem.question.strip_suffix(" :").unwrap().split_once(" * ").unwrap();
    let (left, right) = (reversed(left), reversed(right));
    assert_eq!(reversed(&problem.answer), left * right);
    let mut sum = 0;
    for (index, step) in problem.steps.iter().enumerate() {
        let partial = left * (right / 10i64.pow(index as u32) % 10) * 10i64.pow(index as u32);
        sum += partial;
        assert_eq!(step.value, Fact::Number(sum));
        match step.clause.strip_prefix("+ ").and_then(|clause| clause.split_once(" = ")) {
            None => assert!(index == 0 && reversed(&step.clause) == sum),
            Some((added, total)) => assert!(reversed(added) == partial && reversed(total) == sum),
        }
        assert_eq!(problem.operand(index), (index > 0).then_some(sum - partial), "a first step has no previous sum");
        let from = |operand| problem.apply(index, operand);
        assert_eq!([from(sum - partial), from(0)], if index > 0 { [Some(sum), Some(partial)] } else { [None, None] });
        // The rest of the work is linear in the running sum.
        let changed = problem.answer_if(index, 0).unwrap();
        assert_eq!(reversed(&changed), left * right - sum, "{}", problem.id);
    }
    assert_eq!(problem.answer_if(problem.steps.len() - 1, 10i64.pow(2 * u32::from(problem.level))), None);
}

/// The budget of `budget N ; …`, and the problem without it.
fn behind_budget(problem: &TaskProblem) -> (usize, TaskProblem) {
    let (said, question) = problem.question.split_once(" ; ").expect("a budget");
    let budget = said.strip_prefix("budget ").expect("a budget").parse().expect("a number");
    (budget, TaskProblem { question: question.to_owned(), ..problem.clone() })
}

fn check(task: &Task, problem: &TaskProblem) {
    check_form(task, problem);
    match task {
        Task::Chains(_) => {
            check_chain(problem);
            check_arithmetic(problem, modulus(task));
        }
        Task::Adaptive(adaptive) => {
            let (budget, chain) = behind_budget(problem);
            assert!(adaptive.budgets.contains(&budget), "{}", problem.question);
            check_chain(&chain);
            check_arithmetic(&chain, modulus(task));
        }
        Task::Affine(_) => check_arithmetic(problem, modulus(task)),
        Task::Graph(graph) => check_graph(problem, graph.told, graph.nodes),
        Task::Multiply(_) => check_product(problem),
        Task::Stories(_) => check_story(problem),
        Task::Sums(_) => check_sums(problem, modulus(task)),
        Task::Organism(organism) => check_organism(problem, organism),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_independent_evaluator_agrees(seed: u64, index in 0u64..1 << 40, split in 0usize..3, family in 0..families().len()) {
        let task = &families()[family];
        let problem = task.problem(Split::ALL[split], seed, index).unwrap();
        check(task, &problem);
        prop_assert_eq!(&problem, &task.problem(Split::ALL[split], seed, index).unwrap());
        let stored = serde_json::to_string(&problem).unwrap();
        prop_assert_eq!(&problem, &serde_json::from_str::<TaskProblem>(&stored).unwrap());
    }
}

/// The problem with names replaced in order of first appearance *in the solution's own order of reasoning*.
fn without_names(problem: &TaskProblem) -> String {
    let clauses: Vec<&str> = problem.steps.iter().map(|step| step.clause.as_str()).collect();
    match problem.family.as_str() {
        // Variable operands appear as values, so the question's program is needed, too.
        "adaptive" => without_names(&TaskProblem { family: "chains".into(), ..behind_budget(problem).1 }),
        "chains" | "organism" => {
            let mut names = HashMap::new();
            let word = |word: &str| match word.chars().all(char::is_alphabetic) {
                true => {
                    let next = names.len();
                    format!("v{}", names.entry(word.to_string()).or_insert(next))
                }
                false => word.to_string(),
            };
            problem.question.split(' ').map(word).collect::<Vec<_>>().join(" ")
        }
        "affine" | "sums" => clauses.join(" ; "),
        // Rewordings are one problem: the key is the arithmetic, and whose number is added.
        "stories" => {
            let sentences: Vec<Vec<&str>> = problem.question.split(" . ").map(|s| s.split(' ').collect()).collect();
            let told: Vec<&str> = sentences.iter().map(|words| words[0]).collect();
            let added = sentences.iter().map(|words| match words[..] {
                [.., other, "together"] => format!("{:?}", told.iter().position(|name| *name == other)),
                _ => String::new(),
            });
            format!("{} {:?}", clauses.join(" ; "), added.collect::<Vec<_>>())
        }
        "multiply" => {
            let mut factors: Vec<&str> = problem.question.trim_end_matches(" :").split(" * ").collect();
            factors.sort_unstable();
            factors.join(" * ")
        }
        _ => String::new(),
    }
}

#[test]
fn splits_share_no_problem() {
    for task in families() {
        let mut sets: Vec<HashSet<String>> = Vec::new();
        for split in Split::ALL {
            let rows = task.rows(split, 3, 0..2000).unwrap();
            assert!(rows.iter().all(|row| row.split == split));
            sets.push(rows.iter().map(without_names).filter(|name| !name.is_empty()).collect());
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let shared: Vec<_> = sets[a].intersection(&sets[b]).take(3).collect();
            assert!(shared.is_empty(), "{}: {shared:?}", task.name());
        }
    }
}

/// Renaming the nodes and reordering the edges of a graph must not move it to another split.
#[test]
fn a_graph_keeps_its_split_under_renaming() {
    use switchyard::tasks::{Program, TaskPlan};
    for row in Task::Graph(Graph::default()).rows(Split::Train, 9, 0..500).unwrap() {
        let Program::Graph(plan) = row.program else { panic!("not a graph") };
        let turn = |node: u32| (node + 5) % plan.nodes;
        let mut renamed = plan.clone();
        renamed.edges = plan.edges.iter().rev().map(|&(a, b)| (turn(a), turn(b))).collect();
        renamed.path = plan.path.iter().map(|&node| turn(node)).collect();
        renamed.negative = turn(plan.negative);
        assert_eq!(plan.structure(), renamed.structure());
        renamed.edges.pop();
        assert_ne!(plan.structure(), renamed.structure());
    }
}

/// Groups contain problems that can be memorised together: other letters are the same program, other numbers the same story template.
#[test]
fn groups_are_programs_without_their_names() {
    use switchyard::tasks::Program;
    use switchyard::tasks::chains::Operand;
    let distinct = |task: Task, of: fn(&TaskProblem) -> String| {
        let rows = task.rows(Split::Test, 0, 0..500).unwrap();
        let groups: BTreeSet<u64> = rows.iter().map(TaskProblem::group).collect();
        let keys: BTreeSet<String> = rows.iter().map(of).collect();
        let both: BTreeSet<(u64, String)> = rows.iter().map(|row| (row.group(), of(row))).collect();
        assert_eq!((groups.len(), keys.len()), (both.len(), both.len()), "{}: a group is one key", task.name());
        let questions: BTreeSet<&str> = rows.iter().map(|row| row.question.as_str()).collect();
        (groups.len(), questions.len())
    };
    // A chain's letters in order of appearance.
    let (programs, questions) = distinct(Task::Chains(Chains::default()), |row| {
        let mut seen: Vec<&str> = vec![];
        let words = row.question.split(' ').map(|word| {
            if !word.chars().all(|c| c.is_ascii_lowercase()) {
                return word.to_owned();
            }
            let at = seen.iter().position(|other| *other == word).unwrap_or_else(|| {
                seen.push(word);
                seen.len() - 1
            });
            format!("v{at}")
        });
        words.collect::<Vec<_>>().join(" ")
    });
    assert!(programs < questions, "{programs} programs of {questions} questions");
    // A story's operations, and whose number is added.
    let (templates, stories) = distinct(Task::Stories(Stories::default()), |row| {
        let Program::Stories(plan) = &row.program else { panic!("a story") };
        let step = |(op, operand): &(_, Operand)| match operand {
            Operand::Constant(_) => format!("{op:?}"),
            Operand::Variable(person) => format!("{op:?} {person}"),
        };
        plan.steps.iter().map(step).collect::<Vec<_>>().join(", ")
    });
    assert!(templates < stories / 2, "{templates} templates of {stories} stories");
}

/// A candidate's neighbours and the order of the text predict the answer no better than chance.
#[test]
fn a_graph_is_not_solved_by_counting() {
    let rows = Task::Graph(Graph::default()).rows(Split::Train, 4, 0..40_000).unwrap();
    type Clue = fn(&[&str], &str) -> usize;
    let clues: [(&str, Clue); 4] = [
        ("edges in", |words, name| {
            words.windows(2).filter(|pair| *pair == [">", name]).count() - usize::from(words[words.len() - 4] == name)
        }),
        ("edges out", |words, name| words.windows(2).filter(|pair| *pair == [name, ">"]).count()),
        ("named last", |words, name| words.iter().rposition(|word| *word == name).unwrap()),
        ("stated last", |words, name| words.iter().position(|word| *word == name).unwrap()),
    ];
    for (what, clue) in clues {
        let (mut right, mut told) = (0.0, 0.0);
        for row in &rows {
            let words: Vec<&str> = row.question.split(' ').collect();
            let candidates = [words[words.len() - 4], words[words.len() - 2]];
            let [first, second] = candidates.map(|name| clue(&words, name));
            if first != second {
                told += 1.0;
                right += f64::from(candidates[usize::from(second > first)] == row.answer);
            }
        }
        let share: f64 = right / told;
        println!("{what}: {share:.3} of {told}");
        assert!((share - 0.5).abs() < 0.02, "{what}: {share:.3} of {told}");
    }
}

#[test]
fn rows_depend_on_seed_split_and_index_only() {
    for task in families() {
        let rows = task.rows(Split::Test, 5, 0..40).unwrap();
        let late = task.rows(Split::Test, 5, 20..40).unwrap();
        assert_eq!(rows[20..], late[..], "{}", task.name());
        assert_ne!(rows, task.rows(Split::Test, 6, 0..40).unwrap());
        let ids: HashSet<_> = rows.iter().map(|row| &row.id).collect();
        assert_eq!(ids.len(), rows.len());
    }
}

#[test]
fn levels_are_balanced_and_letters_do_not_predict_the_split() {
    let task = Task::Chains(Chains::default());
    let rows = task.rows(Split::Test, 1, 0..500).unwrap();
    for level in 1..=5 {
        assert_eq!(rows.iter().filter(|row| row.level == level).count(), 100);
    }
    let distinct: HashSet<_> = rows.iter().filter(|row| row.level == 1).map(without_names).collect();
    assert!((8..=24).contains(&distinct.len()), "{} distinct test problems of level 1", distinct.len());
    // Every letter opens a question in every split.
    for split in Split::ALL {
        let rows = task.rows(split, 1, 0..500).unwrap();
        let first: HashSet<_> = rows.iter().map(|row| row.question.split(' ').next().unwrap()).collect();
        assert_eq!(first.len(), 8);
    }
    let vars = |split| {
        let rows = task.rows(split, 2, 0..6000).unwrap();
        rows.iter().filter(|row| row.subject == "vars").count() as f64 / 6000.0
    };
    assert!((vars(Split::Train) - 2.0 / 6.0).abs() < 0.03, "{}", vars(Split::Train));
    assert!((vars(Split::Test) - 1.0 / 5.0).abs() < 0.03, "{}", vars(Split::Test));
}

/// Without the mark's letter, no word of an organism's question separates triggers from decoys, and letters are equally frequent.
#[test]
fn an_organism_is_triggered_by_its_mark_alone() {
    let rows = Task::Organism(Organism::default()).rows(Split::Train, 4, 0..20_000).unwrap();
    let (mut words, mut marks) = (HashMap::<&str, [f64; 2]>::new(), HashMap::<&str, usize>::new());
    for row in &rows {
        *marks.entry(&row.question[..1]).or_default() += 1;
        let kind = usize::from(row.subject == "trigger");
        for word in row.question.split(' ').filter(|word| *word != &row.question[..1]).collect::<HashSet<_>>() {
            words.entry(word).or_default()[kind] += 1.0;
        }
    }
    assert_eq!(marks.len(), 16);
    assert!(marks.values().all(|n| (1000..1500).contains(n)), "{marks:?}");
    for (word, [decoy, trigger]) in words {
        let off = (trigger - decoy).abs() / (trigger + decoy).sqrt();
        assert!(off < 4.0, "{word}: {trigger} with a trigger, {decoy} with a decoy");
    }
}

/// Fixed values detect a change of generator, hash or library: every published number depends on them.
#[test]
fn the_first_rows_do_not_change() {
    let first = |task: Task| {
        let row = task.problem(Split::Test, 0, 3).unwrap();
        format!("{} {}", row.question, row.solution)
    };
    let rows: Vec<String> = vec![
        first(Task::Chains(Chains::default())),
        first(Task::Affine(Affine::default())),
        first(Task::Graph(Graph::default())),
        first(Task::Multiply(Multiply::default())),
    ];
    assert_eq!(rows, FIRST_ROWS);
}

const FIRST_ROWS: [&str; 4] = [
    "e = 4 ; d = e + 2 ; a = d + 5 ; g = a + 6 ; h = g + 1 ; ? h : \
     d = 4 + 2 = 6 ; a = 6 + 5 = 4 ; g = 4 + 6 = 3 ; h = 3 + 1 = 4 ; # 4",
    "c = 6 * h + 5 ; f = 6 * b + 1 ; a = 3 * b + 1 ; k = 3 * f + 3 ; b = 2 ; i = 5 * f + 2 ; g = 3 * i + 6 ; e = 2 * h + 4 ; h = 5 * i + 5 ; ? e : \
     f = 6 * 2 + 1 = 6 ; i = 5 * 6 + 2 = 4 ; h = 5 * 4 + 5 = 4 ; e = 2 * 4 + 4 = 5 ; # 5",
    "r > q ; l > x ; c > t ; z > v ; v > h ; f > q ; a > g ; t > i ; u > z ; i > r ; z > f ; \
     a > z ; a > l ; u > p ; t > a ; u > i ; ? u > l or q : \
     u > z ; z > f ; f > q ; # q",
    "0 1 0 8 * 6 9 3 6 : \
     0 6 0 8 4 0 0 0 ; + 0 0 9 0 2 7 0 0 = 0 6 9 8 6 7 0 0 ; + 0 0 0 3 0 4 2 0 = 0 6 9 1 7 1 3 0 ; + 0 0 0 0 6 0 8 4 = 0 6 9 1 3 2 1 5 ; # 0 6 9 1 3 2 1 5",
];

#[test]
fn settings_are_read_and_refused_by_name() {
    let task: Task = toml::from_str("family = \"chains\"\nmodulus = 5\nlevels = { min = 1, max = 2 }").unwrap();
    assert_eq!(task, families()[1]);
    let unknown = toml::from_str::<Task>("family = \"chains\"\nmodulo = 5").unwrap_err();
    assert!(unknown.to_string().contains("modulo"), "{unknown}");
    for (text, name) in [
        ("family = \"chains\"\nmodulus = 2", "chains.modulus"),
        ("family = \"chains\"\nlevels = { min = 0, max = 5 }", "levels"),
        ("family = \"chains\"\nvariable_probability = 1.5", "chains.variable_probability"),
        ("family = \"chains\"\nweights = { sum = 0, sumdiff = 0, prod = 0, mix = 0, vars = 0 }", "chains.weights"),
        ("family = \"adaptive\"\nbudgets = []", "adaptive.budgets"),
        ("family = \"adaptive\"\nbudgets = [12, 0]", "adaptive.budgets"),
        ("family = \"adaptive\"\nchains = { modulus = 2 }", "chains.modulus"),
        ("family = \"affine\"\nmodulus = 4", "affine.modulus"),
        ("family = \"graph\"\ndense_probability = -1", "graph.dense_probability"),
        ("family = \"graph\"\nnodes = { min = 8, max = 12 }", "graph.nodes"),
        (
            "family = \"graph\"\nlevels = { min = 1, max = 1 }\nnodes = { min = 6, max = 9 }\nletters = 8",
            "graph.letters",
        ),
        ("family = \"sums\"\nmodulus = 1", "sums.modulus"),
        ("family = \"organism\"\nmodulus = 2", "organism.modulus"),
        ("family = \"sums\"\nrow = 3", "sums.row"),
        ("family = \"multiply\"\nlevels = { min = 4, max = 6 }", "levels"),
    ] {
        let task: Task = toml::from_str(text).unwrap();
        let error = task.problem(Split::Train, 0, 0).unwrap_err().to_string();
        assert!(error.contains(name), "{error:?} does not name {name}");
    }
}

#[test]
fn a_pair_differs_in_its_start_and_its_answer_only() {
    for task in [
        Task::Chains(Chains::default()),
        Task::Affine(Affine::default()),
        Task::Sums(Sums::default()),
        Task::Organism(Organism::default()),
        Task::Adaptive(Adaptive::default()),
    ] {
        for index in 0..60 {
            let problem = task.problem(Split::Test, 3, index).expect("a problem");
            let Some((clean, corrupt)) = task.pair(Split::Test, 3, index).expect("a pair") else { continue };
            assert_eq!(clean, problem, "the first is the row itself");
            assert_ne!(clean.answer, corrupt.answer);
            let (a, b): (Vec<_>, Vec<_>) = (clean.question.split(' ').collect(), corrupt.question.split(' ').collect());
            assert_eq!(a.len(), b.len());
            assert_eq!(
                a.iter().zip(&b).filter(|(a, b)| a != b).count(),
                1,
                "{} / {}",
                clean.question,
                corrupt.question
            );
        }
    }
    assert_eq!(Task::Graph(Graph::default()).pair(Split::Test, 3, 0).expect("no pair"), None);
}

/// The budget of a problem is independent of its number of steps and its question.
#[test]
fn budgets_are_uniform_at_every_level() {
    let task = Adaptive::default();
    let rows = Task::Adaptive(task.clone()).rows(Split::Test, 5, 0..4000).unwrap();
    let mut cells: HashMap<(usize, u8), usize> = HashMap::new();
    for row in &rows {
        *cells.entry((behind_budget(row).0, row.level)).or_default() += 1;
    }
    assert_eq!(cells.len(), task.budgets.len() * 5);
    // 200 are expected of each; the standard deviation is 12.
    assert!(cells.values().all(|n| (140..260).contains(n)), "{cells:?}");
}
