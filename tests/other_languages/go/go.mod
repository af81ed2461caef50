module courser.test/languages

go 1.25.0

require github.com/apache/iggy/foreign/go v0.8.0
