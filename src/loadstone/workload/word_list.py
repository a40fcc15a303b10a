"""The words synthetic prompts are made of.

1,024 common English words (3 to 9 lower-case ASCII letters), sorted. With a leading space each is one token in the
GPT-2, cl100k and o200k vocabularies (checked word by word with all three), and so in tokenizers that grew out of
them, Llama 3's and Qwen's; text of k words is then k tokens without a tokenizer at hand. The embedded engine's
vocabulary (`loadstone.measure.engines.tiny_gguf`) is built from the same list, where it holds by construction.
"""

_TEXT = """
able about above accept access account across act action active activity actual add address adult affect after
again against age agency ago agree ahead air all allow almost alone along already also always among amount and
another answer any anyone anything appear apply approach area arm around art article ask attempt attention
author average avoid aware away back bad balance ball band bank bar base basic basis battle because become bed
before begin behavior behind being believe below benefit best better between beyond big bill birth bit block
blue board body book border both bottom bound box boy brain break bring broad budget build building burn bus
business but button buy call camera camp campaign can capital car card care career carry case cash cast cat
catch category cause cell center central certain challenge chance change channel character charge check child
choice choose city civil claim class clean clear clearly client close club coach code collect college color
column come comfort command comment common community company complete complex computer concept concern
condition conduct connect consider contact contain content context continue contract control cook cool copy
core correct cost could count country couple course court cover create credit cross culture current custom
customer cut daily damage danger dark data date day deal decision deep defense degree delay deliver demand
depend design despite destroy detail develop device different difficult direct direction discuss disease
distance document dog door double down draw dream drink drive driver drop due during each ear early earn
easily easy eat economic economy edge editor education effect effort eight either elect element else employ
empty end energy engine enjoy enough ensure enter entire entry equal equipment error establish even event ever
every everyone evidence exact exactly exam example except exist expect expert express extra eye face fact fail
failure fair fall false family fan far fast father favor favorite fear feature federal feed feel feeling feet
female few field fight figure file fill film final finally find fine finish fire firm first fit five fix flag
floor flow focus follow food foot football for force foreign form former forward found four frame free fresh
friend from front full fully fun function fund future gain game gas general get girl give global goal gold
good grand great green ground group grow growth guard guess guy hair half hand handle happen happy hard have
head health hear heart heavy height help her here high him himself his history hit hold home hope hospital
host hot hour house how however huge human hundred idea ill image impact important improve include income
increase index industry inform initial inside install instance instead insurance interest internal into invest
issue item itself job join journal jump just keep key kind know knowledge label lack land language large last
late later launch law lead leader leading learn least leave left leg legal length less let letter level
library license life light like likely limit line link list little live living load local lock long look lose
loss lost lot love low lower machine main major majority make male man manager many map mark market mass
master match material matter may maybe mean meaning measure media medical meet meeting member memory mention
menu mess message method middle might military mind minor miss mission mix mode model modern moment money
month more morning most mother mount move movement movie much music must myself name nation national natural
nature near nearly need negative net network never new news next nice night none nor normal not note nothing
notice now number object obvious offer office officer official often oil old once one only onto open option
order organ original other otherwise our out output outside over own owner pack package page pain pair pan
panel paper parent park part partner party pass past path pattern pay peace people per percent perfect perform
perhaps period person phone photo physical pick picture piece place plan plant play player please plus point
police policy political pool poor pop popular port position positive possible post pot potential power
practice present president press pressure pretty prevent previous price primary print prior prison private
problem process produce product program progress project proper property protect provide public pull purpose
push put quality quarter question quick quickly quite race raise random range rare rate rather reach read
ready real reality really reason receive recent record red reduce refer reflect regard region regular release
remain remember remove report request require research resource respect respond rest result return review
right risk road rock role roll room root round route row rule run safe safety sale same sample save say scale
scene school science score screen script search season second secret section see seek seem select self sell
send sense separate series serious serve service session set seven several shall shape share she shift ship
shoot short shot should show side sign similar simple simply since sing single sit site six size skin sleep
slight slow small smart social society soft solid solution some someone son song soon sort sound source space
speak special speech speed spend spirit split spot spread staff stage stand standard star start state station
status stay step still stock stop storage store story straight strategy stream street strength string strong
structure student study stuff style subject success such suggest summer sun super supply support sure surface
switch system table take talk target task tax teach team tell ten tend term test text than that the their them
then there they thing think third this those though thought threat three through throw thus time title today
together too tool top total touch tour toward town track trade train transfer travel treat tree true trust
truth try turn two type under unique unit unless until upon use used useful user usually value variety various
vehicle version very video view visit voice vote wait walk wall want watch water way weak web week weight well
what when where whether which while who whole whose why wide wife wild will win wind window wish with within
without woman women wonder wood word work world worth would write writer wrong year yet you young your
yourself
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
