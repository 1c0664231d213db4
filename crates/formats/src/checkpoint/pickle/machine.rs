//! A restricted interpreter of Python's pickles, for PyTorch's tensor files: numbers, texts, lists, tuples, dictionaries, and tensors
//! over storages. Nothing in a pickle is executed: a class or function outside a short list is refused by name.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// A value on the stack. Containers are indices into [`PickleMachine::held`], so that two references share one container.
#[derive(Clone, Debug)]
pub(super) enum PickleValue {
    None,
    Number(i64),
    Float,
    Text(Rc<str>),
    Bytes,
    /// A known class or function.
    Global(Global),
    List(usize),
    Tuple(usize),
    Dict(usize),
    Storage(Storage),
    Tensor(Rc<Tensor>),
}

/// A contiguous array of one type in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    pub key: Rc<str>,
    /// PyTorch's name without `Storage`: `Float`, `BFloat16`.
    pub kind: &'static str,
    pub len: usize,
}

/// A view of a storage.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub storage: Storage,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Global {
    OrderedDict,
    Tensor,
    Parameter,
    Size,
    Storage(&'static str),
}

/// Kinds of storages, with the bytes of a value.
pub(super) const KINDS: [(&str, usize); 10] = [
    ("Float", 4),
    ("Half", 2),
    ("BFloat16", 2),
    ("Double", 8),
    ("Long", 8),
    ("Int", 4),
    ("Short", 2),
    ("Char", 1),
    ("Byte", 1),
    ("Bool", 1),
];

impl Global {
    fn parse(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Global::Tensor,
            ("torch._utils", "_rebuild_parameter") => Global::Parameter,
            ("torch", "Size") => Global::Size,
            ("torch", kind) if let Some(kind) = kind.strip_suffix("Storage").and_then(storage_kind) => {
                Global::Storage(kind)
            }
            _ => bail!("has `{module}.{name}`, which is not executed: only tensors and plain containers are read"),
        })
    }
}

fn storage_kind(name: &str) -> Option<&'static str> {
    KINDS.iter().map(|(kind, _)| *kind).find(|kind| *kind == name)
}

/// Contents of a container.
#[derive(Debug)]
enum ContainerContents {
    Items(Vec<PickleValue>),
    Pairs(Vec<(PickleValue, PickleValue)>),
}

/// Maximum number of values of one pickle: a state dict has a few thousand.
const MOST: usize = 1 << 22;

#[derive(Default)]
pub(super) struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<PickleValue>,
    marks: Vec<usize>,
    memo: HashMap<usize, PickleValue>,
    held: Vec<ContainerContents>,
    storages: Vec<Storage>,
}

impl<'a> PickleMachine<'a> {
    /// Reads one pickle; returns its value and the offset of the next one.
    pub fn run(bytes: &'a [u8]) -> Result<(Self, PickleValue, usize)> {
        let mut machine = PickleMachine { bytes, ..Self::default() };
        for _ in 0..MOST {
            let at = machine.at;
            let code = machine.byte()?;
            if code == b'.' {
                let value = machine.pop()?;
                let end = machine.at;
                return Ok((machine, value, end));
            }
            machine.step(code).with_context(|| format!("pickle, byte {at}"))?;
        }
        bail!("a pickle of more than {MOST} steps")
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            0x80 => self.skip(1)?,
            0x95 => self.skip(8)?,
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.pop().map(drop)?,
            b'1' => self.since_mark().map(drop)?,
            b'2' => self.push(self.stack.last().cloned().context("an empty stack")?),
            b'N' => self.push(PickleValue::None),
            0x88 => self.push(PickleValue::Number(1)),
            0x89 => self.push(PickleValue::Number(0)),
            b'I' | b'L' => self.decimal()?,
            b'J' => self.number::<4>(true)?,
            b'K' => self.number::<1>(false)?,
            b'M' => self.number::<2>(false)?,
            0x8a => self.long()?,
            b'G' => self.skip(8).map(|()| self.push(PickleValue::Float))?,
            b'F' => self.line().map(drop).map(|()| self.push(PickleValue::Float))?,
            b'X' | b'T' => self.text(4)?,
            0x8c | b'U' => self.text(1)?,
            0x8d => self.text(8)?,
            b'V' => {
                let line = self.line()?;
                self.push(PickleValue::Text(line));
            }
            b'S' => {
                let line: Rc<str> = self.line()?.trim_matches(['\'', '"']).into();
                self.push(PickleValue::Text(line));
            }
            b'B' => self.blob(4)?,
            b'C' => self.blob(1)?,
            0x8e | 0x96 => self.blob(8)?,
            b']' => self.hold(ContainerContents::Items(vec![]), PickleValue::List),
            b'}' => self.hold(ContainerContents::Pairs(vec![]), PickleValue::Dict),
            b')' => self.hold(ContainerContents::Items(vec![]), PickleValue::Tuple),
            b'l' => {
                let items = self.since_mark()?;
                self.hold(ContainerContents::Items(items), PickleValue::List);
            }
            b't' => {
                let items = self.since_mark()?;
                self.hold(ContainerContents::Items(items), PickleValue::Tuple);
            }
            b'd' => {
                let all = self.since_mark().and_then(pairs)?;
                self.hold(ContainerContents::Pairs(all), PickleValue::Dict);
            }
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(code) - 0x84).context("an empty stack")?;
                let items = self.stack.split_off(from);
                self.hold(ContainerContents::Items(items), PickleValue::Tuple);
            }
            b'a' => self.pop().and_then(|item| self.append(vec![item]))?,
            b'e' => self.since_mark().and_then(|items| self.append(items))?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![(key, value)])?;
            }
            b'u' => self.since_mark().and_then(pairs).and_then(|all| self.set(all))?,
            b'q' => self.uint(1).and_then(|at| self.put(at))?,
            b'r' => self.uint(4).and_then(|at| self.put(at))?,
            b'p' => self.line_number().and_then(|at| self.put(at))?,
            0x94 => self.put(self.memo.len())?,
            b'h' => self.uint(1).and_then(|at| self.get(at))?,
            b'j' => self.uint(4).and_then(|at| self.get(at))?,
            b'g' => self.line_number().and_then(|at| self.get(at))?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(PickleValue::Global(Global::parse(&module, &name)?));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (PickleValue::Text(module), PickleValue::Text(name)) = (module, name) else {
                    bail!("a name that is not text")
                };
                self.push(PickleValue::Global(Global::parse(&module, &name)?));
            }
            b'R' | 0x81 => {
                let (arguments, what) = (self.pop()?, self.pop()?);
                let made = self.make(&what, &arguments)?;
                self.push(made);
            }
            // The attributes of a dictionary (`_metadata`) contain no weights.
            b'b' => {
                let _state = self.pop()?;
                ensure!(
                    matches!(self.stack.last(), Some(PickleValue::Dict(_))),
                    "BUILD of a value that is not a dictionary"
                );
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(&id)?;
                self.storages.push(storage.clone());
                self.push(PickleValue::Storage(storage));
            }
            other => bail!("instruction {other:#04x} is not read: only tensors and plain containers are"),
        }
        ensure!(self.held.len() + self.stack.len() < MOST, "more than {MOST} values");
        Ok(())
    }

    /// Calls a known function or class.
    fn make(&mut self, what: &PickleValue, arguments: &PickleValue) -> Result<PickleValue> {
        let PickleValue::Global(what) = what else { bail!("REDUCE of a value that is not callable") };
        let arguments = self.items(arguments)?;
        ensure!(arguments.len() <= 8, "a call with {} arguments", arguments.len());
        let arguments = arguments.to_vec();
        match (what, arguments.as_slice()) {
            (Global::OrderedDict, []) => {
                self.hold(ContainerContents::Pairs(vec![]), PickleValue::Dict);
                self.pop()
            }
            (Global::Size, [sizes]) => Ok(sizes.clone()),
            (Global::Parameter, [tensor @ PickleValue::Tensor(_), ..]) => Ok(tensor.clone()),
            (Global::Tensor, [PickleValue::Storage(storage), PickleValue::Number(offset), shape, stride, ..]) => {
                let numbers = |list: &PickleValue| -> Result<Vec<usize>> {
                    let one = |item: &PickleValue| match item {
                        PickleValue::Number(n) => usize::try_from(*n).context("a negative size"),
                        _ => Err(anyhow!("a size that is not a number")),
                    };
                    self.items(list)?.iter().map(one).collect()
                };
                let (shape, stride) = (numbers(shape)?, numbers(stride)?);
                ensure!(shape.len() == stride.len(), "a tensor of shape {shape:?} with strides {stride:?}");
                let offset = usize::try_from(*offset).context("a negative offset")?;
                Ok(PickleValue::Tensor(Rc::new(Tensor { storage: storage.clone(), offset, shape, stride })))
            }
            _ => bail!("{what:?} is called with arguments that PyTorch does not use"),
        }
    }

    /// `('storage', torch.FloatStorage, key, device, length)`.
    fn storage(&self, id: &PickleValue) -> Result<Storage> {
        match self.items(id)? {
            [
                PickleValue::Text(tag),
                PickleValue::Global(Global::Storage(kind)),
                PickleValue::Text(key),
                _,
                PickleValue::Number(len),
                ..,
            ] if &**tag == "storage" => {
                let len = usize::try_from(*len).context("a negative length")?;
                Ok(Storage { key: key.clone(), kind, len })
            }
            _ => bail!("a persistent id that is not a storage of a known type"),
        }
    }

    /// Every referenced storage, with the bytes per value.
    pub fn storages(&self) -> impl Iterator<Item = (&str, usize)> {
        let size = |kind| KINDS.iter().find(|(name, _)| *name == kind).map_or(0, |(_, size)| *size);
        self.storages.iter().map(move |storage| (&*storage.key, size(storage.kind)))
    }

    /// Items of a list or tuple.
    pub fn items(&self, value: &PickleValue) -> Result<&[PickleValue]> {
        match value {
            PickleValue::List(at) | PickleValue::Tuple(at) => match &self.held[*at] {
                ContainerContents::Items(items) => Ok(items),
                ContainerContents::Pairs(_) => bail!("a dictionary instead of a list"),
            },
            _ => bail!("expected a list"),
        }
    }

    /// Pairs of a dictionary.
    pub fn pairs(&self, value: &PickleValue) -> Option<&[(PickleValue, PickleValue)]> {
        match value {
            PickleValue::Dict(at) => match &self.held[*at] {
                ContainerContents::Pairs(pairs) => Some(pairs),
                ContainerContents::Items(_) => None,
            },
            _ => None,
        }
    }

    /// Stores a container, and pushes its value.
    fn hold(&mut self, held: ContainerContents, value: fn(usize) -> PickleValue) {
        self.push(value(self.held.len()));
        self.held.push(held);
    }

    fn append(&mut self, more: Vec<PickleValue>) -> Result<()> {
        match self.stack.last() {
            Some(PickleValue::List(at)) if let ContainerContents::Items(items) = &mut self.held[*at] => {
                items.extend(more)
            }
            _ => bail!("items for a value that is not a list"),
        }
        Ok(())
    }

    fn set(&mut self, more: Vec<(PickleValue, PickleValue)>) -> Result<()> {
        match self.stack.last() {
            Some(PickleValue::Dict(at)) if let ContainerContents::Pairs(pairs) = &mut self.held[*at] => {
                pairs.extend(more)
            }
            _ => bail!("entries for a value that is not a dictionary"),
        }
        Ok(())
    }

    fn put(&mut self, at: usize) -> Result<()> {
        let top = self.stack.last().cloned().context("an empty stack")?;
        self.memo.insert(at, top);
        Ok(())
    }

    fn get(&mut self, at: usize) -> Result<()> {
        let value = self.memo.get(&at).cloned().with_context(|| format!("memo entry {at} does not exist"))?;
        self.push(value);
        Ok(())
    }

    fn push(&mut self, value: PickleValue) {
        self.stack.push(value);
    }

    fn pop(&mut self) -> Result<PickleValue> {
        self.stack.pop().context("an empty stack")
    }

    fn since_mark(&mut self) -> Result<Vec<PickleValue>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).context("no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len()).context("a truncated pickle")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn skip(&mut self, n: usize) -> Result<()> {
        self.take(n).map(drop)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Up to a line break.
    fn line(&mut self) -> Result<Rc<str>> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|b| *b == b'\n').context("a truncated pickle")?;
        let line = std::str::from_utf8(self.take(end)?).context("a name that is not text")?.into();
        self.skip(1)?;
        Ok(line)
    }

    fn line_number(&mut self) -> Result<usize> {
        self.line()?.parse().context("not a number")
    }

    fn decimal(&mut self) -> Result<()> {
        let line = self.line()?;
        let number = line.trim_end_matches('L').parse().context("not a number")?;
        self.push(PickleValue::Number(number));
        Ok(())
    }

    fn uint(&mut self, n: usize) -> Result<usize> {
        let bytes = self.take(n)?.iter().rev();
        usize::try_from(bytes.fold(0_u64, |sum, b| sum << 8 | u64::from(*b))).context("a length beyond this machine")
    }

    fn number<const N: usize>(&mut self, signed: bool) -> Result<()> {
        let value = self.uint(N)? as i64;
        self.push(PickleValue::Number(if signed { i64::from(value as i32) } else { value }));
        Ok(())
    }

    /// Little-endian two's complement of any length; values that do not fit are not sizes.
    fn long(&mut self) -> Result<()> {
        let n = self.uint(1)?;
        let bytes = self.take(n)?;
        let sign = if bytes.last().is_some_and(|b| b & 0x80 != 0) { u8::MAX } else { 0 };
        let mut whole = [sign; 8];
        if n <= 8 {
            whole[..n].copy_from_slice(bytes);
        } else {
            // PyTorch's magic number of ten bytes: only its type matters.
            whole = i64::MAX.to_le_bytes();
        }
        self.push(PickleValue::Number(i64::from_le_bytes(whole)));
        Ok(())
    }

    fn text(&mut self, width: usize) -> Result<()> {
        let n = self.uint(width)?;
        let text: Rc<str> = String::from_utf8_lossy(self.take(n)?).into();
        self.push(PickleValue::Text(text));
        Ok(())
    }

    fn blob(&mut self, width: usize) -> Result<()> {
        let n = self.uint(width)?;
        self.skip(n)?;
        self.push(PickleValue::Bytes);
        Ok(())
    }
}

fn pairs(items: Vec<PickleValue>) -> Result<Vec<(PickleValue, PickleValue)>> {
    ensure!(items.len().is_multiple_of(2), "a key without a value");
    let mut items = items.into_iter();
    let mut all = vec![];
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        all.push((key, value));
    }
    Ok(all)
}
