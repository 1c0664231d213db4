//! Chat templates and tokenizers against transformers on the same files (`fixtures/make_text.py`).

use std::fs;
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use switchyard::text::{Chat, Prompts, Template, Vocabulary};

const FIXTURES: &str = "fixtures/text";

fn fixture(name: &str) -> Value {
    let text = fs::read_to_string(Path::new(FIXTURES).join(name)).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

/// A model folder with the fixtures' tokenizer and this `tokenizer_config.json`.
fn folder(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(Path::new(FIXTURES).join("tokenizer.json"), folder.path().join("tokenizer.json")).expect("copied");
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("written");
    folder
}

/// The default template of such a folder.
fn chat(config: &Value) -> Chat {
    Vocabulary::load(folder(config).path()).expect("opens").chat(None).expect("read").expect("a template")
}

fn with_template(tokens: &Value, template: &Value) -> Value {
    let mut config = tokens.clone();
    config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
    config["chat_template"] = template.clone();
    config
}

#[test]
fn chat_templates_are_rendered_token_for_token() {
    let forms = fixture("templates.json");
    let forms = forms.as_object().expect("forms");
    assert!(forms.len() >= 12, "{}", forms.len());
    for (name, form) in forms {
        let folder = folder(&with_template(&form["tokens"], &form["jinja"]));
        let vocabulary = Vocabulary::load(folder.path()).expect("opens");
        let chat = vocabulary.chat(None).expect("a default").expect("a template");
        for case in form["cases"].as_array().expect("cases") {
            let arguments = case["arguments"].as_object().cloned().unwrap_or_default();
            let message = case["message"].as_str().expect("a message");
            let chat = chat.clone().with(arguments.clone()).expect("arguments");
            let text = chat.prompt(message).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(text, case["text"].as_str().expect("text"), "{name} {arguments:?}");
            assert_eq!(chat.encode(&vocabulary, message).expect("encodes"), ids(&case["ids"]), "{name} {arguments:?}");
        }
    }
}

/// A caller's arguments override the template's defaults; tools select the template for tools.
#[test]
fn arguments_of_a_template_override_its_defaults() {
    let jinja = "{{ tools | tojson if tools else 'none' }} {{ documents | length if documents else 0 }} {{ add_generation_prompt }}";
    let both = json!([{ "name": "default", "template": jinja }, { "name": "tool_use", "template": "with tools" }]);
    let said = |template: &Value, name: Option<&str>, arguments: Value| {
        let folder = folder(&with_template(&json!({}), template));
        let chat = Vocabulary::load(folder.path()).expect("opens").chat(name).expect("a chat").expect("a template");
        let arguments = arguments.as_object().cloned().expect("an object");
        chat.with(arguments).and_then(|chat| chat.prompt("hi")).map_err(|error| format!("{error:#}"))
    };
    let alone = json!(jinja);
    assert_eq!(said(&alone, None, json!({})).as_deref(), Ok("none 0 True"));
    let scope = json!("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}");
    assert_eq!(said(&scope, None, json!({})).as_deref(), Ok("21"), "a generation block is a scope");
    let given = json!({ "tools": [1], "documents": [{}, {}], "add_generation_prompt": false });
    assert_eq!(said(&alone, None, given.clone()).as_deref(), Ok("[1] 2 False"));
    assert_eq!(said(&both, None, given.clone()).as_deref(), Ok("with tools"));
    assert_eq!(said(&both, Some("default"), given).as_deref(), Ok("[1] 2 False"));
    assert_eq!(said(&both, None, json!({ "tools": null })).as_deref(), Ok("none 0 True"));
    for name in ["messages", "continue_final_message"] {
        let refused = said(&alone, None, json!({ name: [] })).expect_err("refused");
        assert!(refused.contains(name), "{refused}");
    }
}

/// The end of an answer is the token that the template writes after one.
#[test]
fn an_answer_ends_with_its_templates_token() {
    let forms = fixture("templates.json");
    for (name, end) in [
        ("chatml", "<|im_end|>"),
        ("llama2", "</s>"),
        ("llama3", "<|eot_id|>"),
        ("gemma", "<end_of_turn>"),
        ("phi3", "<|end|>"),
        ("qwen3", "<|im_end|>"),
        ("olmo2", "<|endoftext|>"),
    ] {
        let form = &forms[name];
        let folder = folder(&with_template(&form["tokens"], &form["jinja"]));
        let vocabulary = Vocabulary::load(folder.path()).expect("opens");
        let prompts = Prompts::new(Template::Chat, &vocabulary).expect("has one");
        assert_eq!(prompts.end_id(&vocabulary).expect("ends"), vocabulary.id(end).expect("a token"), "{name}");
    }
}

/// Prompt forms of a recipe, rendered with the model's template.
#[test]
fn a_recipes_form_uses_the_models_template() {
    let form = &fixture("templates.json")["qwen3"];
    let folder = folder(&with_template(&form["tokens"], &form["jinja"]));
    let vocabulary = Vocabulary::load(folder.path()).expect("opens");
    let prompt = |form: Template| Prompts::new(form, &vocabulary).expect("has one").prompt(" 1+1?").expect("renders");
    let asked = "<|im_start|>user\n 1+1?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(Template::Chat), asked);
    assert_eq!(prompt(Template::ChatNoThinking), format!("{asked}<think>\n\n</think>\n\n"));
    let boxed = prompt(Template::ChatNoThinkingBoxed);
    assert!(boxed.contains("\\boxed{}.<|im_end|>") && boxed.ends_with("</think>\n\n"), "{boxed}");
    let bare = Vocabulary::from_words(["a"]).expect("words");
    let error = Prompts::new(Template::Chat, &bare).expect_err("has none").to_string();
    assert!(error.contains("no chat template"), "{error}");
}

#[test]
fn templates_are_found_in_every_file() {
    let one = |folder: &tempfile::TempDir, name: Option<&str>| {
        let vocabulary = Vocabulary::load(folder.path()).expect("opens");
        let chat = vocabulary.chat(name).map(|chat| chat.expect("a template").prompt("x").expect("renders"));
        chat.map_err(|error| error.to_string())
    };
    let named = folder(
        &json!({ "chat_template": [{ "name": "tool_use", "template": "tools" }, { "name": "default", "template": "list" }] }),
    );
    assert_eq!(one(&named, None).as_deref(), Ok("list"));
    assert_eq!(one(&named, Some("tool_use")).as_deref(), Ok("tools"));
    let error = one(&named, Some("none")).expect_err("no such");
    assert!(error.contains("tool_use, default"), "{error}");
    let twice =
        [("default", "first"), ("default", "second")].map(|(name, jinja)| json!({ "name": name, "template": jinja }));
    assert_eq!(one(&folder(&json!({ "chat_template": twice })), None).as_deref(), Ok("second"), "as in transformers");
    let object = folder(&json!({ "chat_template": { "a": "one", "b": "two" } }));
    let error = one(&object, None).expect_err("no default");
    assert!(error.contains("--chat-template") && error.contains("a, b"), "{error}");
    fs::write(object.path().join("chat_template.json"), json!({ "chat_template": "legacy" }).to_string())
        .expect("written");
    assert!(one(&object, None).is_err(), "tokenizer_config.json comes first");
    let legacy = folder(&json!({}));
    fs::write(legacy.path().join("chat_template.json"), json!({ "chat_template": "legacy" }).to_string())
        .expect("written");
    assert_eq!(one(&legacy, None).as_deref(), Ok("legacy"));
    fs::write(named.path().join("chat_template.jinja"), "file").expect("written");
    fs::create_dir(named.path().join("additional_chat_templates")).expect("created");
    fs::write(named.path().join("additional_chat_templates/rag.jinja"), "rag").expect("written");
    assert_eq!(one(&named, None).as_deref(), Ok("file"));
    assert_eq!(one(&named, Some("rag")).as_deref(), Ok("rag"));
    // Written and read again, they are equal.
    let copy = tempfile::tempdir().expect("a folder");
    Vocabulary::load(named.path()).expect("opens").save(copy.path()).expect("saved");
    assert_eq!(one(&copy, None).as_deref(), Ok("file"));
    assert_eq!(one(&copy, Some("rag")).as_deref(), Ok("rag"));
}

/// Expected values: Jinja2 3.1.6 as configured in transformers 5.24.
#[test]
fn numbers_signs_and_raw_text_are_printed_as_python_prints_them() {
    for (jinja, text) in [
        ("{{ x }} {{ x | string }} {{ 5e-5 }} {{ 1e15 }} {{ 100.0 }}", "1e+16 1e+16 5e-05 1000000000000000.0 100.0"),
        ("{{ u }} {{ u | tojson }}", "18446744073709551615 18446744073709551615"),
        ("{{ \"<a b='c'>/&\" | e }}{{ '\"' | escape }}", "&lt;a b=&#39;c&#39;&gt;/&amp;&#34;"),
        ("{{ '<' | e | e }}{{ ('<' | safe) | e }}{{ 1e16 | e }}", "&lt;<1e+16"),
        ("{% raw %}\n{{ x }}\n{% endraw %}\n.", "\n{{ x }}\n."),
        ("{% raw -%}\n{{ x }}{%- endraw %}", "{{ x }}"),
    ] {
        let arguments = json!({ "x": 1e16, "u": u64::MAX });
        let chat = chat(&json!({ "chat_template": jinja }))
            .with(arguments.as_object().cloned().unwrap_or_default())
            .expect("arguments");
        assert_eq!(chat.prompt("m").expect("renders"), text, "{jinja}");
    }
}

/// Texts and errors of Jinja2 (`fixtures/make_jinja.py`).
#[test]
fn expressions_are_rendered_as_jinja2_renders_them() {
    let fixture = fixture("jinja.json");
    let mut wrong = vec![];
    for case in fixture["cases"].as_array().expect("cases") {
        let chat = chat(&json!({ "chat_template": case[0] }));
        let chat = chat.with(fixture["arguments"].as_object().cloned().unwrap_or_default()).expect("arguments");
        let found = chat.prompt("m");
        if found.as_deref().ok() != case[1].as_str() {
            wrong.push(format!("{}: {found:?}, expected {}", case[0], case[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_error_gives_the_reason() {
    for (jinja, said) in [
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{% if %}", "chat template"),
        ("{{ missing.part }}", "undefined"),
        ("{{ strftime_now('%Q') }}", "%Q"),
        ("{{ messages | unknown }}", "unknown"),
        ("{{ messages | pprint }}", "pprint"),
        ("{{ debug() }}", "debug"),
        ("{{ 'a b' | wordwrap(1) }}", "wordwrap"),
        ("{{ {'a': 1} | xmlattr }}", "xmlattr"),
        ("{{ messages | map(attribute='role') }}", "printing a generator"),
        ("{{ messages[0].items }}", "printing a generator, function, macro, method"),
        ("{{ messages[0].fromkeys(['a']) }}", "no method named fromkeys"),
        ("{{ '{0[a]}'.format({'a': 1}) }}", "0[a]"),
        ("{{ '\\N{BULLET}' }}", "escape"),
    ] {
        let error = chat(&json!({ "chat_template": jinja })).prompt("x").expect_err(jinja).to_string();
        assert!(error.contains(said) && error.contains("tokenizer_config.json"), "{jinja}: {error}");
    }
}

/// Folders of every kind; each text has AutoTokenizer's tokens.
#[test]
fn folders_are_read_as_transformers_reads_them() {
    let fixture = fixture("folders.json");
    let texts: Vec<&str> = fixture["texts"].as_array().expect("texts").iter().filter_map(Value::as_str).collect();
    let mut wrong = vec![];
    for (name, case) in fixture["folders"].as_object().expect("folders") {
        let folder = written(&fixture, &case["files"]);
        let vocabulary = Vocabulary::load(folder.path()).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        // Written and read again, it is equal.
        let copy = tempfile::tempdir().expect("a folder");
        vocabulary.save(copy.path()).expect("saved");
        fs::copy(folder.path().join("config.json"), copy.path().join("config.json")).expect("copied");
        let again = Vocabulary::load(copy.path()).unwrap_or_else(|error| panic!("{name}, saved: {error:#}"));
        for (text, wanted) in texts.iter().zip(case["ids"].as_array().expect("ids")) {
            for (vocabulary, which) in [(&vocabulary, "read"), (&again, "written again")] {
                let found = vocabulary.encode_row(text).expect("encodes");
                let wanted = ids(wanted);
                if found != wanted {
                    wrong.push(format!("{name} ({which}): {text:?}: {found:?}, expected {wanted:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A folder of `folders.json`.
fn written(fixture: &Value, files: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, at) in files.as_object().expect("files") {
        let content = &fixture["contents"][at.as_u64().expect("a number") as usize];
        let coded = content["base64"].as_str().map(|coded| BASE64_STANDARD.decode(coded).expect("base64"));
        let bytes = coded.unwrap_or_else(|| content.as_str().expect("text").as_bytes().to_vec());
        fs::write(folder.path().join(file), bytes).expect("written");
    }
    folder
}

/// As in transformers: with only a tokenizer.model, the configuration's additional tokens count and the map's do not.
#[test]
fn additional_tokens_with_a_tokenizer_model_come_from_the_configuration() {
    let fixture = fixture("folders.json");
    let read = |map: Value, more: Option<&str>| {
        let folder = written(&fixture, &fixture["folders"]["sentencepiece, llama"]["files"]);
        fs::write(folder.path().join("special_tokens_map.json"), map.to_string()).expect("written");
        let path = folder.path().join("tokenizer_config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        if let Some(token) = more {
            config["additional_special_tokens"] = json!([token]);
        }
        fs::write(path, config.to_string()).expect("written");
        Vocabulary::load(folder.path()).expect("opens").encode_row("a<tok>b").expect("encodes")
    };
    let plain = read(json!({}), None);
    assert_eq!(read(json!({ "additional_special_tokens": ["<tok>"] }), None), plain);
    assert!(read(json!({}), Some("<tok>")).len() < plain.len());
}

#[test]
fn a_text_with_bos_gets_no_second_one() {
    let folder = folder(&json!({ "bos_token": "<s>" }));
    let path = folder.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    let id =
        file["added_tokens"].as_array().expect("a list").iter().find(|t| t["content"] == "<s>").expect("there")["id"]
            .clone();
    file["post_processor"] = json!({ "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<s>": { "id": "<s>", "ids": [id], "tokens": ["<s>"] } } });
    fs::write(&path, file.to_string()).expect("written");
    let vocabulary = Vocabulary::load(folder.path()).expect("opens");
    let once = vocabulary.encode_row("the train").expect("encodes");
    assert_eq!(vocabulary.bos(), Some(once[0]));
    assert_eq!(vocabulary.encode_row("<s>the train").expect("encodes"), once);
    assert_eq!(vocabulary.encode_row("the<s>").expect("encodes")[0], once[0]);
}

#[test]
fn an_unknown_named_token_is_appended() {
    let folder = folder(&json!({ "pad_token": "<|PAD_TOKEN|>", "bos_token": "<gone>", "unk_token": "<unk>" }));
    let full = Vocabulary::load(folder.path()).expect("opens");
    assert_eq!(full.pad().map(|id| id as usize), Some(full.size() - 1), "as transformers does");
    fs::write(folder.path().join("tokenizer_config.json"), json!({ "pad_token": 3 }).to_string()).expect("written");
    let error = Vocabulary::load(folder.path()).expect_err("no token").to_string();
    assert!(error.contains("tokenizer_config.json: pad_token: expected a token, found a number"), "{error}");
}
