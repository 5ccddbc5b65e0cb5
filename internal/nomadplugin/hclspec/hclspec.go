// Package hclspec describes configuration blocks the way Nomad's plugins do:
// Nomad's client reads the user's HCL against such a description and sends the
// plugin the result as msgpack.
package hclspec

// Spec is one node of a description. Exactly one field is set.
type Spec struct {
	Object     map[string]*Spec
	Array      []*Spec
	Attr       *Attr
	BlockValue *Block // one block, as a value
	BlockAttrs *BlockAttrs
	BlockList  *BlockList
	BlockSet   *BlockList
	BlockMap   *BlockMap
	Default    *Default
	Literal    *Literal
}

// Attr is an attribute `name = value`. Type is HCL's own notation: string,
// number, bool, list(string), map(string), any.
type Attr struct {
	Name     string
	Type     string
	Required bool
}

// Block is a nested block whose content Nested describes.
type Block struct {
	Name     string
	Required bool
	Nested   *Spec
}

// BlockAttrs is a nested block with free attribute names of one type.
type BlockAttrs struct {
	Name     string
	Type     string
	Required bool
}

// BlockList is a repeated block; no limit where MaxItems is 0.
type BlockList struct {
	Name     string
	MinItems uint64
	MaxItems uint64
	Nested   *Spec
}

// BlockMap is a repeated block with labels.
type BlockMap struct {
	Name   string
	Labels []string
	Nested *Spec
}

// Default gives Primary, or Fallback where Primary is absent.
type Default struct {
	Primary  *Spec
	Fallback *Spec
}

// Literal is a constant, written as an HCL expression: `"x"` with its quotes.
type Literal struct{ Value string }
